"""sizer: a sizing advisor for transformer architectures.

``check`` runs the rules on a configuration or module and prices each finding, ``diff`` prices a change of one,
``search`` looks for faster neighbouring dimensions, ``plan`` for splits over devices, ``ops`` lists every operator with
its predicted time, ``memory`` what takes memory and what fits, ``mfu`` what a measured step reaches, ``deploy`` what
engines do with a model, ``read_config`` gives a file as a ``ModelShape``; ``pad_vocab``, ``round_to_alignment``
and ``swiglu_width`` are for model-config code. A mistake is an ``InputError``.

>>> import sizer
>>> sizer.pad_vocab(50257)
50304
"""

# Nothing is imported here, not `typing` nor what a __future__ import loads: `python -m sizer` comes by before
# __main__.py can take the working directory off the path. Type checkers read __init__.pyi.

#: Public name -> its module: a name is loaded when it is first used, so that `import sizer` costs next to nothing.
#: The packages are called checking and searching because importing a submodule `sizer.check` would rebind
#: `sizer.check` to the module.
_TABLE = """\
InputError          shapes.errors
ModelShape          shapes.model
Workload            shapes.workload
pad_vocab           sizer.answers.advice
round_to_alignment  sizer.answers.advice
check               sizer.checking
deploy              sizer.answers.deploy
diff                sizer.answers.diff
memory              sizer.answers.memory_breakdown
mfu                 sizer.answers.mfu
ops                 sizer.answers.operator_table
plan                sizer.answers.plan:plan_config
Reading             sizer.readers
read_config         sizer.readers
Report              sizer.checking.findings
search              sizer.searching
swiglu_width        sizer.searching
"""
_HOMES = dict(line.split() for line in _TABLE.splitlines())

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        module, _, attribute = _HOMES[name].partition(":")
        found = getattr(import_module(module), attribute or name)
        if isinstance(found, type):
            return found
        from .doors import checked

        return checked(found)
    if name == "__version__":
        from importlib.metadata import version

        from shapes.program import DISTRIBUTION

        return version(DISTRIBUTION)
    raise AttributeError(f"module 'sizer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})
