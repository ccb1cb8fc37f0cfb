"""Kubernetes manifests, Helm values, Compose, Ray Serve, SkyPilot and Truss files: what they run, as one script."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from shapes.frozen import Values

from .loading import parse_yaml
from .reading import FORMATS, WORDS, Config, at, is_released, snaked

_TABLE = FORMATS["manifests"]

#: The name of the model that a server loads.
_NAME = r"(?:hf://|pvc://[\w.-]+/)?[\w.-]+/[\w.-]+"
#: The devices of the one machine, of a node in SkyPilot's resources.
_GPUS = r"(?:accelerators|gpu)': (?:'[\w.:-]*:|\{'(?:[\w.-]+|name': '[\w.-]+', 'count)': )(\d+)['}]"
#: The name of the served model, before options of the container that serves it.
_SERVED = r"(?m)(^vllm serve \S+ --port 8000) *$\s+(?=--(?!model))"


def script(config: Config) -> str:
    """The commands of containers and tasks and of models to serve, a line each, their variables before them."""
    return re.sub(_SERVED, r"\1 ", "\n".join(_commands(config, _TABLE["first"]))).strip()


def _environment(value: Config) -> Values:
    """The variables that a container, a service or a task is given: a mapping, or a list of names and values."""
    found = Values()
    for said in map(value.get, _TABLE["env"]):
        found |= said if isinstance(said, Mapping) else {}
        for one in _listed(said):
            if isinstance(one, str):
                key, _, found[key] = one.partition("=")
            elif isinstance(one, Mapping) and "value" in one:  # others have it elsewhere (valueFrom)
                found[str(one.get("name"))] = one["value"]
    return {key: str(one) for key, one in found.items()}


def _commands(value: Any, above: Values) -> Iterator[str]:
    """The commands of a section and of those in it, which are given the variables from ``above`` too."""
    if isinstance(value, Mapping):
        env = _environment(value)
        above = (
            above
            | {
                key: one
                for one in re.findall(_GPUS, str(value.get("resources")) * ("nodes" not in value))
                for key in _TABLE["gpus"]
            }
            | env
        )
        named = [one for key in _TABLE["models"] if re.fullmatch(_NAME, one := str(at(value, key)))]
        own = "image" in value and value.keys().isdisjoint(_TABLE["programs"])  # its own program serves
        named += [one for key, one in env.items() if own and key in WORDS["keys"] and is_released(one)]
        task = "\n".join(one for one in (value.get("run"), *_listed(value.get("commands"))) if isinstance(one, str))
        words = [f"{key}={shlex.quote(one)}" for key, one in above.items() if task or value.get("command")]
        words += [f"vllm serve {one} --port 8000" for one in named]
        words += [
            f"vllm serve {nim} --port 8000 --quantization profile"
            for key in _TABLE["images"]  # a NIM's image is called by its model
            for nim in re.findall(r"^nvcr\.io/nim/([\w.-]+/[\w.-]+)", str(value.get(key)))
        ]
        words += [f"--tensor-parallel-size={one}" for key in _TABLE["degrees"] if words and (one := at(value, key))]
        words += [  # such a program takes options of the environment too, and TGI all
            f"--{key.lower()}={shlex.quote(one)}"
            for key, one in env.items()
            if re.search(_TABLE["options"], f"{own and named != []} {value.get('image')} {key}")
        ]
        words += [one for one in env.values() if one.startswith("--")]  # VLLM_ADDITIONAL_ARGS
        said = " ".join(words + [task] + [one for key in _TABLE["words"] for one in _words(value.get(key))])
        yield re.sub(r"\$\((\w+)\)", lambda found: above.get(found[1], found[0]), said)  # as Kubernetes puts it in
        value = [
            parse_yaml(str(one)) if key == "serveConfigV2" else one
            for key, one in value.items()
            if key != "model" or not named
        ]
    for one in _listed(value):
        yield from _commands(one, above)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(said: Any) -> list[str]:
    """A command's words, quoted as a shell has them; settings (``tensorParallelSize: 2``) as options."""
    if isinstance(said, Mapping):
        said = [f"--{snaked(str(key))}={value}" for key, value in said.items() if not isinstance(value, list)]
    return [said] if isinstance(said, str) else [shlex.quote(str(one)) for one in _listed(said)]
