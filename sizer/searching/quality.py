"""`search --quality`: loss of candidates over the baseline's by published fits (quality.toml), each within its range.

Loss is judged in ratios alone: what a token costs in nats is a data set's. A fit that was not made for shapes like the
baseline's is left out, which a note says; bounds around published practice are what is left then.
"""

from functools import partial
from math import gcd, lcm

import numpy as np

from shapes.columns import Array
from shapes.frozen import Named, Names, Values, among, replace
from shapes.model import MlaShape, ModelShape
from shapes.program import REQUESTS
from shapes.step import Pricer
from shapes.toml_table import table_of

from .pricing import estimates
from .space import EQUAL, Candidates, Limits, Space
from .spaces import counts

FITS = table_of(__file__, "quality.toml")
#: Shapes within this factor of the baseline's are published practice; candidates are made as far as the other, so that
#: what a bound costs is known.
PRACTICE, MADE = 2.0, 3.0
#: How far parameters may move where a fit says what they are worth, and what sizes are multiples of at least.
TOLERANCE, COARSE = 0.1, 256
#: Notes on properties that no published fit covers.
UNPRICED = (
    "no published fit prices head_dim (Kaplan et al. draw it, without figures; Shazeer's fewer or narrower heads are "
    "narrower together, too), d_ff/h or the context trained on: bounds alone hold there"
)


def wide(limits: Limits, model: ModelShape, tokens: float, step: int) -> Limits:
    """Limits of a search at equal loss: shapes as far as ``MADE``, parameters too where their worth is known."""
    beyond = _outside(FITS["size"][0], {"parameters": model.parameters, "tokens": tokens})
    return replace(
        limits,
        spread=MADE,
        tolerance=limits.tolerance if beyond or model.moe else max(limits.tolerance, TOLERANCE),
        step=limits.step or lcm(gcd(COARSE, model.hidden), step),
        vary=limits.vary or ("mla-heads" if isinstance(model.attention, MlaShape) else "kv-ratio",),
    )


def losses(space: Space, found: Candidates, tokens: float) -> tuple[Array, Array, Names]:
    """(loss over the baseline's, what it may be off by) of each candidate, and which fits do not speak of them."""
    columns = {name: np.concatenate(([space.baseline[name]], column)) for name, column in found.columns.items()}
    total, active = counts(space.model, columns)
    facts = {**_practice(columns, space.model), "parameters": active, "total parameters": total, "tokens": tokens}
    sizes = [
        fit["floor"] + fit["a"] * facts["parameters"] ** -fit["alpha"] + fit["b"] * tokens ** -fit["beta"]
        for fit in FITS["size"]
    ]
    ratio, other = (one / one[0] for one in sizes)
    terms = [(FITS["size"][0], ratio, ratio - other)]
    for fit in FITS["term"]:
        if fit["of"] in facts:
            log = np.log(facts[fit["of"]] / fit["around"])
            term = fit["log"] * log + fit["squared_log"] * log**2
            terms.append((fit, term, fit["band"] * term + fit.get("off", 0.0) * log))
    kept, notes = [], []
    for fit, term, off in terms:
        if outside := _outside(fit, facts):
            notes.append(f"{fit['name']} was not made for {outside}: bounds alone hold there")
            continue
        kept.append((term - term[0], abs(off - off[0])))
        made = ", ".join(f"{key} {low:.3g} to {high:.3g}" for key, (low, high) in fit["ranges"].items())
        notes.append(f"loss by {fit['name']} ({fit['source']}), made for {made}")
    change, band = np.sum(kept, axis=0)[:, 1:] if kept else np.zeros((2, len(found)))
    return 1 + change, band, (*notes, UNPRICED)


def _outside(fit: Named, facts: Named) -> str:
    """The baseline's figures that lie outside of a fit's ranges, in words."""
    own = {key: float(np.ravel(facts[key])[0]) for key in fit["ranges"]}
    return ", ".join(
        f"{key} {own[key]:.3g}" for key, (low, high) in fit["ranges"].items() if not low <= own[key] <= high
    )


def at_equal_loss(space: Space, pricer: Pricer, tokens: float) -> Space:
    """``space`` within published practice at no more than the baseline's loss; notes say what each bound costs."""
    loss, _, notes = losses(space, space.candidates, tokens)
    bounds = {f"loss at most {EQUAL:.1%} above": loss <= 1 + EQUAL}
    own = _practice(space.baseline, space.model)
    for name, ratio in _practice(space.candidates.columns, space.model).items():
        bounds[f"{name} {own[name] / PRACTICE:.3g} to {own[name] * PRACTICE:.3g}"] = (
            np.abs(np.log(ratio / own[name])) <= np.log(PRACTICE) + 1e-9
        )
    kept, seconds = space.where(bounds), estimates(space, space.candidates, pricer).seconds
    best = np.nanmin(seconds[np.all(list(bounds.values()), axis=0)], initial=np.inf)
    for name in () if REQUESTS else bounds:
        free = np.nanmin(seconds[np.all([mask for other, mask in bounds.items() if other != name], axis=0)])
        notes = *notes, f"{name}: costs {best / free - 1:.1%} of the shortest step"
    return replace(kept, notes=(*kept.notes, *notes), loss=partial(losses, space, tokens=tokens))


def _practice(sizes: Named, model: ModelShape) -> Values:
    """Ratios that published models keep within limits, for a change or for columns of them."""
    found = {"h/L": sizes["hidden"] / sizes["layers"]}
    if "kv_heads" in sizes:
        found["query heads a key/value head"] = sizes["heads"] / sizes["kv_heads"]
    elif isinstance(model.attention, MlaShape):
        found["latent heads"] = sizes["heads"]
    if "full_every" in sizes:
        found[f"layers to a full one, {'recurrent' if model.mixer else 'windowed'}"] = sizes["full_every"]
    if "experts" in sizes:
        found["sparsity"] = sizes["experts"] / sizes["top_k"]
        found["granularity"] = 4 * sizes["hidden"] / sizes["expert_d_ff"]
    return found | among(sizes, ("window", "experts", "top_k"))
