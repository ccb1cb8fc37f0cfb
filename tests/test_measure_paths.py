"""What only happens where processes, clusters, packages or devices misbehave, with a stand-in for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from measure_fakes import FakeExecutor

torch = pytest.importorskip("torch")

import cuda_shim  # noqa: E402  # needs torch

import shapes.measure as measure_package  # noqa: E402
from shapes.dtypes import DTYPES  # noqa: E402
from shapes.errors import InputError  # noqa: E402
from shapes.measure import InProcess, Settings  # noqa: E402
from shapes.measure.backend import Backend, accelerator_here  # noqa: E402
from shapes.measure.executor import DeviceLostError, NotMeasured  # noqa: E402
from shapes.measure.jobs import ATTENTION, EXPERTS, Direction, Job, MemoryBound, Part, head, swiglu  # noqa: E402
from shapes.measure.kernels import build, functions  # noqa: E402
from shapes.measure.kernels.functions import ran  # noqa: E402
from shapes.measure.kernels.parts import MOST_SETS  # noqa: E402
from shapes.measure.runner import measure  # noqa: E402
from shapes.measure.suite import KNOWN, PHASES  # noqa: E402
from shapes.measure.timer import verify  # noqa: E402
from shapes.measure.workers import LostError, Workers  # noqa: E402
from shapes.operators.types import Attention, Collective, Elementwise, Gemm, GroupedGemm  # noqa: E402

FAST = Settings(precision=0.5, time_s=1e-3, batch_s=1e-4, warm_up_s=1e-4, most_warm_up_s=2e-2)


def product(k: int) -> Job:
    return Job(Gemm("x", "forward", 16, 16, k, dtype="fp32"))


class Cluster(ModuleType):
    """The module ray: two kinds of accelerators, actors that answer in this process. ``trouble``: what is raised."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.started: dict[str, Any] = {}
        self.killed: list[object] = []
        self.trouble: Exception | None = None
        self.silent = False
        self._private = SimpleNamespace(worker=SimpleNamespace(_worker_logs_enabled=True))
        error = type("RayError", (Exception,), {})
        self.exceptions = SimpleNamespace(RayError=error, RayActorError=type("RayActorError", (error,), {}))

    def is_initialized(self) -> bool:
        return bool(self.started)

    def init(self, **options: Any) -> None:
        if options["address"] == "nowhere:1":
            raise RuntimeError("no head node")
        self.started = options

    def nodes(self) -> list[dict[str, Any]]:
        def node(name: str, count: int, alive: bool = True) -> dict[str, Any]:
            return {"Alive": alive, "Resources": {"GPU": count, f"accelerator_type:{name}": 1.0}}

        return [node("H100", 2), node("A100", 1), node("L4", 8, alive=False)]

    def remote(self, made: type) -> Any:
        def start(*arguments: Any) -> Any:
            actor = made(*arguments)

            def ask(name: str) -> Any:
                return SimpleNamespace(
                    options=lambda **_: SimpleNamespace(remote=lambda *rest: iter(list(getattr(actor, name)(*rest))))
                )

            return SimpleNamespace(begin=ask("begin"), run=ask("run"))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def wait(self, streams: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return ([], streams) if self.silent else (streams, [])

    def get(self, message: Any, timeout: float) -> Any:
        if self.trouble is not None:
            raise self.trouble
        return message

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, ModuleType]]:
    there = Cluster()
    monkeypatch.setitem(sys.modules, "ray", there)
    monkeypatch.delitem(sys.modules, "shapes.measure.ray_workers", raising=False)
    monkeypatch.delattr(measure_package, "ray_workers", raising=False)
    import shapes.measure.ray_workers as module

    yield there, module
    # What was imported with the stand-in goes; monkeypatch puts back what was there before.
    del sys.modules["shapes.measure.ray_workers"], measure_package.ray_workers


def test_a_clusters_devices_are_found_asked_and_lost(cluster: tuple[Cluster, Any]) -> None:
    ray, module = cluster
    made = module.ray_workers("local", "H100", None, lambda _: FakeExecutor(lambda job: 1e-3))
    assert [one.name for one in made] == ["H100/0", "H100/1"]
    assert len(module.ray_workers("local", None, "cpu")) == 3
    sweep = measure([product(k) for k in range(1, 9)], executor=Workers(made, lambda _: None))
    assert len(sweep.results) == 8
    with pytest.raises(InputError, match="expected a type of what the cluster has: A100:1, H100:2"):
        module.ray_workers("local", "L4", None)
    one = made[0]
    ray.silent = True
    with pytest.raises(LostError, match="answered nothing for 2 s"):
        list(one.ask(2.0, "begin"))
    ray.silent = False
    for trouble, says in (
        (ray.exceptions.RayActorError("x"), "its process died"),
        (ray.exceptions.RayError("CUDA error\nmore"), "CUDA error"),
    ):
        ray.trouble = trouble
        with pytest.raises(LostError, match=f"^{says}$"):
            list(one.ask(2.0, "begin"))
    ray.trouble = ray.exceptions.RayError("x")
    ray.trouble.cause = InputError("expected another")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="expected another"):
        list(one.ask(2.0, "begin"))
    assert len(ray.killed) == 4


def test_the_words_of_suites_are_those_that_are_known() -> None:
    assert list(KNOWN["dtypes"]) == list(DTYPES)
    assert list(KNOWN["layouts"]) == list(PHASES)
    assert list(KNOWN["direction"]) == list(get_args(Direction))
    assert list(KNOWN["grouped"]) == list(EXPERTS)
    assert set(KNOWN["attention"]) == {*ATTENTION["sdpa"], *ATTENTION["packages"], *ATTENTION["names"]}


def test_a_cluster_that_is_not_there_is_one_line(cluster: tuple[Cluster, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, module = cluster
    monkeypatch.setattr(module.socket, "create_connection", lambda *_, **__: SimpleNamespace(close=lambda: None))
    for address in ("nowhere:1", "nonsense"):
        with pytest.raises(InputError, match="expected local, auto or HOST:PORT of a head node"):
            module.ray_workers(address, None, None)
    with pytest.raises(InputError, match="torch sees no accelerator in a process that was given one"):
        module.accelerator_or_cpu(None)
    assert module.accelerator_or_cpu("cpu").environment.cpu


@pytest.mark.parametrize(("package", "kernel"), [("flash_attn", "flash-attn"), ("flash_attn_interface", "fa3")])
@pytest.mark.parametrize("window", [None, 8])
def test_a_package_apart_is_called_as_it_wants(
    package: str, kernel: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[b, s, heads, d], sides of the window; the third version gives a tuple."""

    def flash(q: Any, k: Any, v: Any, causal: bool, window_size: tuple[int, int]) -> Any:
        assert window_size == ((-1, -1) if window is None else (7, 0))
        behind = torch.arange(32)[:, None] - torch.arange(32)
        mask = (behind >= 0) & (behind < (window or 32))
        turned = (one.transpose(1, 2) for one in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*turned, attn_mask=mask).transpose(1, 2)
        return (out, None) if kernel == "fa3" else out

    module = ModuleType(package)
    module.flash_attn_func = flash  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, module)
    backend = Backend()
    backend.cache_bytes = 2**14
    core = Attention("a", "forward", 1, 2, 2, 32, 32, 16, 16, window=window)
    made = build(Job(core, kernel), backend)
    assert verify(made) <= made.bound


def test_what_ran_is_told_by_the_kernels_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["void cutlass::device_kernel<flash::FlashAttnFwdSm90>", "aten::mm"]

    class Seen:
        def __enter__(self) -> Seen:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def key_averages(self) -> list[Any]:
            return [SimpleNamespace(key=name) for name in names]

    monkeypatch.setattr("torch.profiler.profile", Seen)
    ran("fa3", lambda: None)
    with pytest.raises(functions.UnsupportedError, match="refused: cudnn was asked for, void cutlass"):
        ran("cudnn", lambda: None)
    names.clear()
    with pytest.raises(functions.UnsupportedError, match="another kernel ran"):
        ran("flash", lambda: None)


@pytest.mark.parametrize("part", ["self_attention", "mlp", "head"])
def test_on_a_device_a_layer_checks_the_kernel_that_it_names(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("shapes.measure.kernels.parts.ran", lambda name, call: asked.append(name))
    from test_measure_kernels import layer

    one = Part(part, layer().model, layer().workload)  # type: ignore[arg-type]
    with cuda_shim.installed():
        InProcess("cuda").prepare(Job(one, "math"), FAST)
    assert asked == []  # the shim's tensors are a processor's
    assert MOST_SETS > 1


class Moody(InProcess):
    """Preparing and sampling fail as they are told."""

    def __init__(self, **troubles: Any) -> None:
        super().__init__("cpu")
        self.backend.cache_bytes = 2**14
        self.troubles = troubles

    def prepare(self, job: Job, settings: Settings | None = None) -> Any:
        self._fail("prepare", job)
        return super().prepare(job, settings)

    def sample(self, prepared: Any, count: int) -> Any:
        self._fail("sample", prepared.job)
        return super().sample(prepared, count)

    def _fail(self, where: str, job: Job) -> None:
        why = self.troubles.get(where, {}).get(getattr(job.work, "k", 0))
        if why and why.pop():
            raise NotMeasured("oom", "no memory")


def test_a_job_without_room_waits_for_the_others_and_one_that_fails_later_is_an_outcome() -> None:
    crowded = measure([product(8), product(16)], executor=Moody(prepare={16: [False, True]}), settings=FAST)
    assert {one.status for one in crowded.results.values()} == {"ok"}
    later = measure([product(8), product(16)], executor=Moody(sample={16: [True]}), settings=FAST)
    assert {one.description["k"]: one.status for one in later.results.values()} == {8: "ok", 16: "oom"}


@pytest.mark.parametrize("where", ["prepare", "sample"])
def test_without_the_control_shape_the_device_is_lost(where: str) -> None:
    with pytest.raises(DeviceLostError, match="no memory"):
        measure([product(8)], executor=Moody(**{where: {512: [True] * 9}}), settings=FAST)


def test_a_kernel_that_breaks_while_it_is_sampled_is_an_error() -> None:
    session = InProcess("cpu")
    session.backend.cache_bytes = 2**14
    prepared = session.prepare(product(8), FAST)
    prepared.handle.stopwatch.take = lambda count: (_ for _ in ()).throw(MemoryError("no"))
    with pytest.raises(NotMeasured) as outcome:
        session.sample(prepared, 1)
    assert outcome.value.status == "oom"
    assert session.room_bytes > 0


def test_titles_name_every_kind_of_work() -> None:
    core = Attention("a", "forward", 1, 2, 2, 32, 32, 16, 16)
    norm = Elementwise("norm", "forward", "norm", 8, 8)
    titles = [
        Job(one).title
        for one in (core, MemoryBound("norm", 8, 8), GroupedGemm("e", "forward", 2, 8, 8, 8), norm, head(8, 8, 16))
    ]
    assert titles == [
        "attention b=1 a=2 s=32 d=16 forward bf16",
        "norm 8 x 8 forward bf16",
        "grouped 2 x (8 x 8 x 8) bf16",
        "elementwise norm",
        "head h=8 v=16 tokens=8 bf16 forward+backward",
    ]
    assert Job(swiglu(8, 8, 8, compiled=True)).title.endswith("compiled")


@pytest.mark.parametrize(
    ("work", "kernel", "says"),
    [
        (Collective("c", "forward", "all_reduce", 8, 2), "", "needs its shapes or several devices"),
        (Gemm("x", "forward", 8, 8, 8, dtype="int8", batch=2, kind="bmm"), "", "no batched int8"),
        (Gemm("x", "forward", 8, 8, 8, weight_bytes=0.5), "", "quantised weights"),
        (Gemm("x", "forward", 8, 8, 8, dtype="nvfp4"), "", "no kernel|no plain type"),
        (GroupedGemm("e", "forward", 2, 8, 8, 8, dtype="fp8"), "", "no grouped product for fp8"),
        (GroupedGemm("e", "forward", 2, 8, 8, 8), "dance", "no grouped kernel"),
        (Attention("a", "forward", 1, 2, 2, 32, 32, 16, 16, dtype="fp8"), "", "no attention kernel for fp8"),
        (MemoryBound("norm", 8, 8, dtype="fp8"), "", "no norm kernel for fp8"),
    ],
    ids=range(8),
)
def test_work_without_a_kernel_is_refused(work: Any, kernel: str, says: str) -> None:
    with pytest.raises(NotMeasured, match=says):
        InProcess("cpu").prepare(Job(work, kernel))


def test_an_accelerator_is_not_here_without_a_driver_or_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shapes.measure.backend.DRIVERS", ("/nowhere",))
    assert not accelerator_here()
    monkeypatch.setattr("shapes.measure.backend.DRIVERS", ("/",))
    assert accelerator_here() is torch.cuda.is_available()
    flush = Backend.flusher(SimpleNamespace(cache_bytes=64))  # type: ignore[arg-type]
    flush()
    assert np.array_equal(group := np.ones(3), group)
