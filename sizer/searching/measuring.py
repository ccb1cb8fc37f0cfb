"""Measured times of a space's candidates: what is timed of each, sampled as a strategy asks, kept in the store."""

import time
from collections.abc import Callable, Sequence
from math import exp, inf
from statistics import NormalDist

import numpy as np

from shapes.columns import Array
from shapes.cost import Timing
from shapes.errors import InputError, refuse
from shapes.frozen import Names, Sizes, frozen, in_words, replace
from shapes.measure import record
from shapes.measure.executor import NotMeasured, Prepared
from shapes.measure.jobs import Job, Part, PartName
from shapes.measure.stats import summarise
from shapes.measure.store import Store
from shapes.measure.workers import LOST, Session
from shapes.model import AttentionShape, Block, MlpShape, ModelShape, MoeShape
from shapes.operators import operators
from shapes.operators.types import Gemm, GroupedGemm
from shapes.program import REQUESTS
from shapes.toml_table import check_bounds
from shapes.workload import Workload

from .pricing import Progress, TimedCandidate, Times, rebuilt
from .space import OBJECTIVES, Space, whole_heads
from .strategies import MOST_PREPARED, MOST_SAMPLES, UNKNOWN, BaselineError, CannotRunError, Outcome, Race, racing

#: (job, how many times it counts in the candidate's time)
WeightedJobs = Sequence[tuple[Job, float]]


def weighted_jobs(space: Space, change: Sizes) -> WeightedJobs:
    """A candidate's jobs to measure, each with its weight at the baseline's tokens.

    They have the products that ``pricing.price`` prices. InputError for operators that can only be predicted.
    """
    model, workload = rebuilt(space, change)
    if space.measured_parts == ():
        found = (space.timed or operators)(model, workload)
        return [(Job(operator), operator.count) for operator in found if isinstance(operator, Gemm | GroupedGemm)]
    names = space.measured_parts or (("layer", "head") if model.head else ("layer",))
    _refuse(model, workload, names)
    scale, blocks = space.workload.tokens / workload.tokens, model.main.blocks
    jobs = dict[str, tuple[Job, float]]()
    for name in names:
        # The head is once, whatever the blocks.
        for block in blocks if name != "head" else (replace(blocks[0], count=1),):
            job = _job(name, model, block, workload)
            # Blocks that differ elsewhere may have the same MLP: one job, which counts for all of them.
            _, before = jobs.get(job.key, (job, 0.0))
            jobs[job.key] = job, scale * block.count + before
    return list(jobs.values())


def left_out(space: Space) -> Names:
    """Sentences on the parts of a step that are not timed."""
    if not space.ruled:
        return ()
    if space.measured_parts == ():
        return ("matrix products are timed one by one; activations, permutation and all-to-all are not",)
    notes = []
    if space.measured_parts is None:
        notes.append("layers and the head are timed, embedding and optimizer are not")
    if space.workload.t > 1:
        norms = ", norms run on all tokens" if space.workload.sequence_parallel else ""
        notes.append(f"one of {space.workload.t} tensor-parallel shards is timed, communication is not{norms}")
    return tuple(notes)


def _refuse(model: ModelShape, workload: Workload, names: tuple[PartName, ...]) -> None:
    whole = all(
        whole_heads(one.heads, one.kv_heads, workload.t)
        for block in model.main.blocks
        if isinstance(one := block.attention, AttentionShape)
    )
    reasons = {
        "one pipeline stage and expert shard: others": workload.p * workload.e > 1,
        "no checkpointing: recomputed layers": workload.train and workload.checkpointing != "none",
        "a decoder: stacks of layers": len(model.stacks) > 1 and names != ("head",),
        f"whole key/value heads on each of {workload.t} shards: split ones": not whole
        and not {"layer", "self_attention"}.isdisjoint(names),
    }
    for reason, holds in reasons.items():
        refuse(holds, f"expected {reason} are not measured, --predict covers them", "--measure")


def _job(name: PartName, model: ModelShape, block: Block, workload: Workload) -> Job:
    """The part of one such block on one shard."""
    t, attention, mlp = workload.t, block.attention, block.mlp
    split = t > 1 and isinstance(mlp, MoeShape) and name in ("layer", "mlp")
    refuse(split, "expected whole experts: split ones are not measured", "--tp", t)
    if isinstance(attention, AttentionShape):
        heads, kv_heads = attention.on_shard(t)
        fused = attention.fused_qkv if workload.fused_qkv is None else workload.fused_qkv
        attention = replace(attention, heads=heads, kv_heads=kv_heads, fused_qkv=fused)
    if isinstance(mlp, MlpShape):
        fused = mlp.fused_gate_up if workload.fused_gate_up is None else workload.fused_gate_up
        mlp = replace(mlp, width=-(-mlp.width // t), fused_gate_up=fused)
    stack = replace(model.main, blocks=(replace(block, attention=attention, mlp=mlp, count=1),))
    one = replace(model, stacks=(stack,), vocab=-(-model.vocab // t))
    alone = replace(workload, t=1, sequence_parallel=False, fused_qkv=None, fused_gate_up=None)
    return Job(Part(name, one, alone, "forward+backward" if workload.train else "forward"))


#: Kernels are kept ready in so much of the memory that is free at the start: each costs a check and a warm-up.
ROOM = 0.5
#: A shared processor may never tell two candidates apart: it is measured so long, where nobody says how long.
ON_A_CPU_S = 48.0
#: Samples are written down so often: writing takes as long as a small kernel, and a GPU that waits for it cools down.
SAVE_S = 0.2


@frozen
class Measured:
    """Seconds of whole parts of a model on ``executor``'s device, kept in ``store``.

    The best is known to within ``regret`` at ``confidence``, unless ``time_limit_s`` is up first (None: ON_A_CPU_S on a
    processor). A candidate's interval is that of its ratio to the baseline it was paired with.
    """

    executor: Session
    strategy: Callable[[Race], Outcome] = racing
    regret: float = 0.01
    confidence: float = 0.95
    time_limit_s: float | None = None
    store: str | None = None

    def __post_init__(self) -> None:
        check_bounds(regret=self.regret, confidence=self.confidence)

    @property
    def _limit_s(self) -> float:
        return self.time_limit_s or (ON_A_CPU_S if self.executor.environment.cpu else inf)

    def times(self, space: Space, row: Sequence[TimedCandidate], objective: str, progress: Progress) -> Times:
        """Times of those of the predicted ``row`` (baseline first) that the strategy looked at.

        The notes say how sure the best is. InputError where the baseline cannot run.
        """
        start, limit_s = time.perf_counter(), self._limit_s

        def gone() -> float:
            return (time.perf_counter() - start) / limit_s

        with Store.open(self.store, measuring=True) as store:
            sampler = Sampler(space, [one.change for one in row], self.executor, store)
            race = Race(
                [one.timing.seconds for one in row],
                max(one.timing.half_width for one in row[1:]),
                sampler.sample,
                [*map(OBJECTIVES[objective], row)],
                self.regret,
                self.confidence,
                lambda: gone() >= 1,
                # As far as time is, where that is further: the least of both is left.
                lambda done, of, best: progress(max(done, round(of * gone())), of, in_words(row[best].change)),
                [one.structure for one in row],
                sampler.renew,
            )
            try:
                outcome = self.strategy(race)
            except BaselineError as failure:
                raise InputError(f"the baseline cannot be measured here ({failure})", "--measure") from None
            finally:
                sampler.close()
        name, looked = self.executor.environment.source, sorted(outcome.ratios)
        seen = tuple(replace(row[at], timing=_timing(outcome, at, self.confidence, name)) for at in looked)
        failures = (f"{in_words(row[index].change)} was not measured ({why})" for index, why in outcome.failed.items())
        notes = self._answer(outcome, row, sampler.reused), *left_out(space), *failures
        known = f"undecided ({outcome.sure:.0%} sure, {self.confidence:.0%} asked): "
        if outcome.within < UNKNOWN:
            best = f"{in_words(row[outcome.best].change)} is within {outcome.within:.1%} of the best"
            known = f"{best}, {self.confidence:.0%} sure ({self.regret:.1%} asked): "
        return Times(seen, outcome.samples, notes, known * (outcome.sure < self.confidence))

    def _answer(self, outcome: Outcome, row: Sequence[TimedCandidate], reused: int) -> str:
        ended = ""
        if not outcome.finished:
            ended = "; an end was asked for" if REQUESTS else f"; --time-limit {self._limit_s:g}s was up"
        elif outcome.sure < self.confidence:
            ended = f"; {MOST_SAMPLES} runs of each, or {MOST_PREPARED} preparations, which are the most, did not tell"
        if ended:
            low, middle, high = np.quantile(outcome.baseline_s, (0.25, 0.5, 0.75))
            ended += (
                f" where one run differs from another by {(high - low) / 1.349 / middle:.0%}. The same command goes on "
                "from there; a larger --limit regret is decided sooner"
            )
        kept = f" ({reused} kernels timed before)" if reused else ""
        return (
            f"{len(outcome.ratios) - 1} of {len(row) - 1} candidates looked at{kept}, {outcome.sure:.0%} sure that "
            f"none of them is more than {self.regret:.1%} faster than the best{ended}"
        )


def _timing(outcome: Outcome, index: int, confidence: float, source: str) -> Timing:
    if index == 0:
        alone = summarise(outcome.baseline_s, confidence)
        return Timing(alone.seconds, alone.low, alone.high, source)
    level, ratio = float(np.median(outcome.baseline_s)), summarise(np.exp(outcome.ratios[index]), confidence)
    # Three samples may agree by luck: the interval is no narrower than what the others' spread makes of so few.
    reach = exp(NormalDist().inv_cdf((1 + confidence) / 2) * outcome.errors[index])
    low, high = min(ratio.low, ratio.seconds / reach), max(ratio.high, ratio.seconds * reach)
    return Timing(level * ratio.seconds, level * low, level * high, source)


class Sampler:
    """Samples of candidates by index, from the store first."""

    def __init__(self, space: Space, changes: Sequence[Sizes], executor: Session, store: Store) -> None:
        self._jobs = [weighted_jobs(space, change) for change in changes]
        self._executor, self._store = executor, store
        self._ready = dict[str, Prepared]()
        self._room_bytes = ROOM * executor.room_bytes
        #: Jobs with samples that are not stored yet.
        self._unsaved = dict[str, Prepared]()
        self._saved_at_s = time.perf_counter()
        #: Samples of the store that were not handed out yet, by job.
        self._kept = dict[str, Array]()
        #: How many kernels had samples in the store.
        self.reused = 0

    def sample(self, index: int, count: int) -> Array:
        """``count`` times of candidate ``index``, seconds; CannotRunError where it cannot run."""
        try:
            return np.asarray(sum(weight * self._take(job, count) for job, weight in self._jobs[index]))
        except NotMeasured as outcome:
            raise CannotRunError(f"{outcome.status}: {outcome}") from outcome

    def renew(self, index: int) -> None:
        """Store the candidate's samples and drop its kernels, so that the next sample prepares them anew."""
        for job, _ in self._jobs[index]:
            if job.key in self._ready:
                self._close(job.key)

    def _take(self, job: Job, count: int) -> Array:
        key = job.key
        if key not in self._kept:
            self._kept[key] = self._stored(job)
            self.reused += bool(len(self._kept[key]))
        kept = self._kept[key]
        if len(kept) >= count:
            self._kept[key] = kept[count:]
            return kept[:count]
        try:
            prepared = self._ready.pop(key, None) or self._prepare(job)
            self._ready[key] = prepared  # the most recently used is last
            taken = self._executor.sample(prepared, count)
        except NotMeasured as failure:
            if str(failure).startswith(LOST):  # it would be lost with it again, in this search or another
                self._ready.pop(key, None)
                self._unsaved.pop(key, None)
                self._store.add([record.outcome(job, self._executor.environment, failure.status, message=str(failure))])
            raise
        self._unsaved[key] = prepared
        if time.perf_counter() - self._saved_at_s >= SAVE_S:
            unsaved = {key: (one.samples, one.controls) for key, one in self._unsaved.items()}
            self._store.save_unfinished(unsaved, self._executor.environment)
            self._unsaved.clear()
            self._saved_at_s = time.perf_counter()
        return taken

    def _stored(self, job: Job) -> Array:
        environment = self._executor.environment
        unfinished = self._store.unfinished([job.key], environment).get(job.key)
        if unfinished is not None:
            return unfinished[0]
        found = self._store.find(job.key, environment)
        if found and found.message.startswith(LOST):
            raise NotMeasured(found.status, found.message)
        return found.samples if found and found.ok else np.empty(0)

    def _prepare(self, job: Job) -> Prepared:
        while sum(one.held_bytes for one in self._ready.values()) > self._room_bytes:
            self._close(next(iter(self._ready)))
        try:
            prepared = self._executor.prepare(job)
        except NotMeasured as outcome:
            if outcome.status != "oom" or not self._ready:
                raise
            self.close()  # no room with the others: once more alone
            prepared = self._executor.prepare(job)
        prepared.samples = self._stored(job)
        return prepared

    def _close(self, key: str) -> None:
        self._unsaved.pop(key, None)
        prepared = self._ready.pop(key)
        if len(prepared.samples):
            self._store.add([self._executor.finish(prepared)])
        else:  # its first sample failed
            self._executor.release(prepared)

    def close(self) -> None:
        """Write what was measured as finished measurements and let go of the kernels."""
        for key in list(self._ready):
            self._close(key)
