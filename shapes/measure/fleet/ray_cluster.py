"""A Ray cluster's accelerators as fleets: connect, see what is there, start processes, check what runs in them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import shapes
from shapes.errors import InputError
from shapes.measure.environment import Environment
from shapes.measure.executor import Settings
from shapes.measure.fleet.device_process import Make
from shapes.measure.fleet.fleet import Fleet
from shapes.measure.fleet.members import Member, Members, differences
from shapes.measure.fleet.messages import Gone, Greeting
from shapes.measure.fleet.placement import UNNAMED, Node, places
from shapes.measure.fleet.ray_pool import RayPool

#: A head node that does not take a connection within this is not there; Ray itself tries for minutes.
CONNECT_S = 5.0
#: Where `ray start` writes the address of the cluster it started.
_CURRENT = "ray/ray_current_cluster"
_TYPE = "accelerator_type:"


def connect(address: str, sent: str | None = None) -> bool:
    """Join the cluster at ``address`` ("auto": this machine's); False where this program has joined one already.

    ``sent``: a package's folder that every worker gets. InputError in one line of what was tried.
    """
    if ray.is_initialized():
        return False
    if address.startswith("ray://"):
        expected = "expected auto or HOST:PORT of the head node: run sizer on a node of the cluster"
        raise InputError(expected, key="--ray", value=address)
    found, tried = _current() if address == "auto" else (address, address)
    if found is not None:
        _reachable(found, tried)
    # What Ray says of a worker's death goes to standard output, into our answer, whatever log_to_driver is; we say it.
    if hasattr(ray._private.worker, "_worker_logs_enabled"):
        ray._private.worker._worker_logs_enabled = False
    with _own_signals():
        try:
            ray.init(
                address=found or "auto",
                namespace="sizer",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
                runtime_env={"py_modules": [sent]} if sent is not None else None,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise InputError(
                f"no Ray cluster ({reason}); tried {tried}: start one with `ray start --head`", key="--ray"
            ) from None
    return True


def _current() -> tuple[str | None, str]:
    """(the address that Ray would find, what was looked at)."""
    named = os.environ.get("RAY_ADDRESS")
    if named and named != "auto":
        return named, f"RAY_ADDRESS={named}"
    path = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / _CURRENT
    try:
        return path.read_text().strip(), str(path)
    except OSError:
        return None, f"RAY_ADDRESS (not set), {path} (not there) and this machine's processes"


def _reachable(address: str, tried: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError("expected auto or HOST:PORT of the head node", key="--ray", value=address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f"{tried} ({address})" if tried != address else address
        raise InputError(
            f"no Ray cluster: tried {where} for {CONNECT_S:.0f} s: {reason}; start one with `ray start --head`",
            key="--ray",
        ) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts a handler of its own in place of ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def nodes_of_cluster() -> list[Node]:
    """The nodes with accelerators, whole ones counted."""
    found = []
    for node in ray.nodes():
        resources: Mapping[str, float] = node["Resources"] if node["Alive"] else {}
        types = [name.removeprefix(_TYPE) for name in resources if name.startswith(_TYPE)]
        devices = int(resources.get("GPU", 0))
        if devices:
            found.append(Node(node["NodeID"], node["NodeManagerAddress"], types[0] if types else UNNAMED, devices))
    return found


def fleets(
    address: str,
    *,
    make: Make,
    device: str | None = None,
    on: Mapping[str, int | None] | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None],
    silent_s: float = 120.0,
    start_s: float = 120.0,
) -> tuple[Fleet, ...]:
    """A fleet for every kind of accelerator at ``address``: devices with the same name, driver and libraries.

    ``on``: type -> how many (None: all that are there). ``make`` and ``device``: see ``DeviceProcess``. ``say`` is told
    what happens to devices. InputError where there is no cluster, not what was asked for, or another sizer on a node.
    """
    ours = connect(address)
    nodes = nodes_of_cluster()
    wanted = places(on, nodes)
    sent = _code_on([node for node in nodes if node.type in wanted])
    if sent is not None:
        _send(address, sent, ours)
    pool = RayPool(device, make)
    members = {
        name: Member(name, type_) for type_, count in wanted.items() for name in (f"{type_}/{i}" for i in range(count))
    }
    for member in members.values():
        pool.start(member.name, member.type)
    greetings, gone = _greetings(pool, members, start_s)
    if not greetings:
        reasons = "; ".join(dict.fromkeys(gone.values())) or f"none was ready within {start_s:.0f} s: are they in use?"
        raise InputError(f"no device of the cluster can be used: {reasons}", key="--ray")
    for name, reason in gone.items():
        say(f"{members.pop(name).label}: {reason}: not used")
    made = []
    for environment, names in _kinds(members, greetings, say).items():
        own = pool.split(names)
        kind = Members(own, [members[name] for name in names], environment, say=say, silent_s=silent_s, start_s=start_s)
        for name in names:
            if name in greetings:
                kind.greeted(members[name], greetings[name])
        made.append(Fleet(own, kind, min(greetings[name].room_bytes for name in names if name in greetings), settings))
    return tuple(made)


def _send(address: str, folder: str, ours: bool) -> None:
    """Join anew, now with the code that nodes lack: Ray sends folders with a whole job only."""
    if not ours:
        raise InputError(
            "sizer is not installed on every node: install it, or join with "
            f"ray.init(runtime_env={{'py_modules': [{folder!r}]}})",
            key="--ray",
        )
    ray.shutdown()
    connect(address, folder)


def _greetings(
    pool: RayPool, members: Mapping[str, Member], start_s: float
) -> tuple[dict[str, Greeting], dict[str, str]]:
    """(who is ready, who cannot be and why); those that are neither after ``start_s`` may come later."""
    ready: dict[str, Greeting] = {}
    gone: dict[str, str] = {}
    until = time.monotonic() + start_s
    while len(ready) + len(gone) < len(members) and time.monotonic() < until:
        for name, message in pool.wait(0.5):
            if isinstance(message, Greeting):
                ready[name] = message
            elif isinstance(message, Gone):
                gone[name] = message.reason
                pool.stop(name)
    return ready, gone


def _kinds(
    members: Mapping[str, Member], greetings: Mapping[str, Greeting], say: Callable[[str], None]
) -> dict[Environment, list[str]]:
    """Environment -> its devices. Of one type those with other versions than most are not used: their figures would be

    another kind's. A device that has not greeted yet belongs to its type's.
    """
    of_type: dict[str, Environment] = {}
    kinds: dict[str, list[str]] = {}
    for type_ in dict.fromkeys(member.type for member in members.values()):
        here = {name: greetings[name].environment for name in greetings if members[name].type == type_}
        if not here:
            waited = [name for name in members if members[name].type == type_]
            say(f"{', '.join(waited)}: not ready: not used")
            continue
        most = Counter(one.identity for one in here.values()).most_common(1)[0][0]
        of_type[type_] = next(one for one in here.values() if one.identity == most)
        kinds.setdefault(most, [])
        for name, member in members.items():
            if member.type != type_:
                continue
            if name in here and here[name].identity != most:
                say(f"{member.name} at {greetings[name].node}: {differences(here[name], of_type[type_])}: not used")
            else:
                kinds[most].append(name)
    by_identity = {one.identity: one for one in of_type.values()}
    return {by_identity[identity]: names for identity, names in kinds.items()}


def _code_on(nodes: Iterable[Node]) -> str | None:
    """The folder of this package where a node has none and is to be sent it, else None. InputError: another version."""
    folder = Path(shapes.__file__).parent
    look = _look_at_code()
    here, _ = look(str(folder))
    there = ray.remote(look)
    answers = {
        node.id: there.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(None)
        for node in nodes
    }
    missing = False
    for node in nodes:
        digest, torch = ray.get(answers[node.id])
        if torch is None:
            raise InputError("expected torch to be installed there: pip install sizer[torch]", where=node.address)
        if digest is None:
            missing = True
        elif digest != here:
            raise InputError(
                f"another sizer is installed there (its shapes package is {digest}, this one's {here}): install the "
                "same, or none, so that this one is sent",
                where=node.address,
            )
    return str(folder) if missing else None


def _look_at_code() -> Callable[[str | None], tuple[str | None, str | None]]:
    """A function that needs nothing of this package where it runs: nested ones are sent whole."""

    def look(folder: str | None) -> tuple[str | None, str | None]:
        """(hash of the shapes package's files or None, torch's version or None)."""
        import hashlib
        from importlib import metadata, util
        from pathlib import Path

        place = folder
        if place is None:
            spec = util.find_spec("shapes")
            place = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
        digest = None
        if place is not None:
            whole = hashlib.sha256()
            for path in sorted(Path(place).rglob("*")):
                if path.suffix in (".py", ".toml"):
                    whole.update(path.relative_to(place).as_posix().encode())
                    whole.update(path.read_bytes())
            digest = whole.hexdigest()[:12]
        try:
            return digest, metadata.version("torch")
        except metadata.PackageNotFoundError:
            return digest, None

    return look
