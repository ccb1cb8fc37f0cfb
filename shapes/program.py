"""The program itself: the distribution it comes as, what others add to it, and whether somebody asked for its end.

Other distributions add rules, readers, formats and engines by entry points (reports/reference.md). A plug-in that fails
is a line that names it, as every other mistake is.
"""

import os
import sys
from functools import cache, lru_cache
from glob import iglob
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError
from .frozen import Named, first_of

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

#: The signals that asked for an end; the first counts (``sizer.process``): what takes long looks here between
#: two parts, and answers with what it has.
REQUESTS: list[int] = []
#: Whether one thread of the command line's own process answers (``sizer.__main__``): nothing else uses what it loads.
ALONE = False
#: The command and the import are ``sizer``; the name ``sizer`` on the package index is another project's.
DISTRIBUTION = "model-sizer"


@lru_cache(64)
def named_function(path: str) -> Any:
    """The object that "module:name" names, usually a function."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def installed() -> "Distribution | None":
    """The installed distribution; None of a checkout that only lies on the path."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def install(extra: str) -> str:
    """The command that adds ``extra`` (of pyproject.toml) to this copy: to the clone it runs from, else by name."""
    clone = Path(__file__).parents[1]
    named = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'{DISTRIBUTION}[{extra}]'"
    return f"pip install {named}"


#: The top-level package of each plug-in that was loaded.
_LOADED: "dict[str, EntryPoint]" = {}


@cache
def _any_installed() -> bool:
    """Whether a distribution on the path names a group of ours; 2 ms, where importlib.metadata takes 25 to say so."""
    for folder in sys.path:
        for file in iglob("*-info/entry_points.txt", root_dir=folder or "."):
            with open(os.path.join(folder, file), "rb") as listed:
                if b"[sizer." in listed.read():
                    return True
    return False


@cache
def added(group: str, *needs: str) -> Named:
    """Name -> what the entry points of ``group`` ("sizer.rules") hold, each with the attributes that it ``needs``.

    InputError for one that cannot be loaded.
    """
    if not _any_installed():
        return {}
    from importlib.metadata import entry_points

    found = {}
    for one in entry_points(group=group):
        _LOADED[one.module.partition(".")[0]] = one
        try:
            found[one.name] = loaded = one.load()
            for name in needs:
                getattr(loaded, name)
        except Exception as error:
            raise _refused(one, error) from None
    return found


def blamed(error: BaseException) -> InputError | None:
    """The line on an error that comes from a plug-in's code; None for any other."""
    from traceback import walk_tb  # only a failure pays for it

    modules = [frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    return first_of(_refused(_LOADED[one], error) for one in modules if one in _LOADED)


def _refused(one: "EntryPoint", error: BaseException) -> InputError:
    owner = f"`pip uninstall {one.dist.name}`" if one.dist else "uninstall it"
    said = f"failed with {type(error).__name__}: {error}; mend it or {owner}"
    return InputError(said, where=f"plug-in {one.name} of {one.group}")
