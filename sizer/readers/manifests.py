"""Kubernetes manifests, Helm values and Compose files: the commands that their containers run, as one script."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sizer.readers.reading import Config

#: Keys that name the model that a server is to load.
_MODEL = ("url", "modelURL", "storageUri")
_VARIABLE = re.compile(r"\$\((\w+)\)")
_NAME = re.compile(r"(?:hf://)?[\w.-]+/[\w.-]+")


def script(config: Config) -> str:
    """The commands of containers and of models to serve, a line each, their own variables before them."""
    return "\n".join(_commands(config))


def _commands(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _own(value)
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _commands(one)


def _own(value: Config) -> Iterator[str]:
    """The command that a section itself says: a model to serve, or a container's."""
    settings = value.get("vllmConfig")
    held = {**settings, **value} if isinstance(settings, Mapping) else value
    words = [one for key in ("command", "args", "extraArgs") for one in _words(held.get(key))]
    if name := next((name for key in _MODEL if _NAME.fullmatch(name := str(value.get(key)))), ""):
        yield " ".join(["vllm serve", name, "--port 8000", *_options(settings), *words])
    elif words:
        yield from _container(value, words)


def _container(value: Config, words: list[str]) -> Iterator[str]:
    """What a container runs, after its variables."""
    env = value.get("env")
    for one in env if isinstance(env, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get("value"), str) and str(one.get("name")).isidentifier():
            yield f"{one['name']}={shlex.quote(one['value'])}"
    if "-c" in words[:-1]:
        yield _VARIABLE.sub(r"${\1}", shlex.split(words[words.index("-c") + 1])[0])
        return
    served = "vllm" in str(value.get("image")) and not value.get("command") and not words[0].startswith("-")
    yield " ".join(["vllm serve" if served else "", *words]).strip()


def _words(said: Any) -> list[str]:
    """A command's words, quoted as a shell has them; variables of the container stay variables."""
    if isinstance(said, str):
        return [said]
    plain = [_VARIABLE.sub(r"${\1}", str(one)) for one in said] if isinstance(said, list) else []
    return [one if re.fullmatch(r"[\w${}=./:,@%+-]+", one) else shlex.quote(one) for one in plain]


def _options(settings: Any) -> list[str]:
    """``tensorParallelSize: 2`` as an option of the server."""
    held = settings.items() if isinstance(settings, Mapping) else ()
    spelled = {re.sub("([A-Z])", r"-\1", str(key)).lower(): value for key, value in held}
    return [f"--{key}={value}" for key, value in spelled.items() if isinstance(value, int | float)]
