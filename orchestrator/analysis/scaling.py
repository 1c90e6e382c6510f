"""Answers how steps to goal fall with the batch size: where scaling is perfect, where returns
diminish, and where scaling ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.enough import (
    BestOf,
    Contributions,
    EqualQuality,
    Errors,
    contributions_of,
    enough_trials,
)
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import (
    CONFIDENCE,
    SKEW_OF_MINIMA,
    Hyperbola,
    fit_hyperbola,
)
from orchestrator.analysis.law_fits import Bend, Measured, fit_bend
from orchestrator.analysis.law_transitions import (
    Transitions,
    crossing,
    few_examples,
    steps_min_of,
)
from orchestrator.analysis.laws import LawChoice, choose_law, measured_of
from orchestrator.analysis.points import (
    ENOUGH_STEPS,
    Point,
    curves_of,
    has_medians,
    points_of,
)
from orchestrator.records import ENOUGH_SIZES
from orchestrator.results import FrontierRow

PERFECT_TOLERANCE = 0.3
"""Share by which steps x batch size may exceed its minimum while scaling counts as perfect."""

USEFUL_TOLERANCE = 0.1
"""Share by which steps may exceed the fewest that any batch size would need, at the last useful
batch size."""

CRITICAL_TOLERANCE = 0.2
"""Share by which examples exceed the fewest at the critical batch size, in its other definition."""

BENDS = "none of the laws tried fits the curve, so read the answer from the points"
OTHERWISE = "the curve does not follow S_min (1 + B_crit / B), so there is no B_crit"
RISES = "steps rise again at the largest batch sizes, which none of the laws tried allows"
STARVES = (
    "below batch size {:,}, training takes more examples; perhaps the budget or the search is too "
    "small there"
)
FLAT = "flat: a larger batch size saves no steps in the range tested"
FITS = "perfect scaling, then diminishing returns, as in S_min (1 + B_crit / B)"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The answer for one workload, recipe and goal. A number that is not known is None."""

    workload: str
    recipe: str
    goal: str
    perfect_scaling_until: Estimate | None
    perfect_scaling_from: int | None
    """The batch size from which on scaling is perfect, if smaller ones need more examples."""
    max_useful_batch_size: Estimate | None
    steps_min: Estimate | None
    critical_batch_size: Estimate | None
    """B_crit of steps = steps_min (1 + B_crit / B); None if that law is refused."""
    critical_by_examples: Estimate | None
    """The batch size that needs a fifth more examples than the fewest: the same idea without a
    law."""
    fit_residual_log2: float | None
    """Root mean square distance, in doublings, of the points from the curve of the law, or from the
    closest curve if no law fits."""
    law: LawChoice | None
    """The law of the curve; None if there are too few batch sizes."""
    largest: int | None
    """Largest batch size that the answer covers; it says nothing about larger ones."""
    of_medians: bool
    """Whether the answer is about medians of repeats rather than the luckiest of many trials."""
    left_out: tuple[str, ...]
    """Batch sizes of the curve that are not used, with the reasons."""
    contributions: Contributions | None = None
    """The errors from which the intervals are made; None if nothing was fitted."""
    equal_quality: EqualQuality | None = None
    """The same answer if all batch sizes were tuned equally well. With equal numbers of trials,
    large batch sizes are tuned worse if good points become rarer."""
    quality_unknown: str = ""
    """The reason why there is no such answer, in words."""
    best_of: tuple[BestOf, ...] = ()
    """The results that more trials would find at each batch size."""
    verdict: str

    @property
    def is_flat(self) -> bool:
        """Whether the curve is flat, so that no law can be fitted."""
        return self.verdict == FLAT

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def scalings(rows: Sequence[FrontierRow]) -> list[Scaling]:
    """The scaling of each workload, recipe and goal in a frontier."""
    found = []
    for names, curve in curves_of(rows).items():
        points = points_of(curve)
        telling = [point for point in points if point.tells]
        best_of, errors = enough_trials(telling)
        scaling = scaling_of(
            *names,
            [(point.batch_size, point.steps, point.resolution) for point in telling],
            tested=len(curve),
            censored=any(row.censored for row in curve),
            of_medians=has_medians(curve),
            left_out=_left_out(curve, points),
            errors=errors,
            train_size=curve[0].train_size,
        )
        found.append(replace(scaling, best_of=best_of))
    return found


def _left_out(curve: Sequence[FrontierRow], points: Sequence[Point]) -> tuple[str, ...]:
    unfinished = [row.batch_size for row in curve if not row.finished]
    short = [point.batch_size for point in points if point.row.finished and not point.tells]
    return tuple(
        f"{', '.join(f'{size:,}' for size in sizes)} ({why})"
        for sizes, why in (
            (unfinished, "not finished yet"),
            (short, f"fewer than {ENOUGH_STEPS} steps"),
        )
        if sizes
    )


def scaling_of(
    workload: str,
    recipe: str,
    goal: str,
    points: Sequence[tuple[int, float, int]],
    *,
    tested: int,
    censored: bool = False,
    of_medians: bool = False,
    left_out: tuple[str, ...] = (),
    errors: Errors | None = None,
    train_size: int | None = None,
) -> Scaling:
    """The scaling of one curve. `points` are those that may be used, from the smallest batch size
    up, and `errors` belong to them. `tested` is the number of batch sizes that were tried,
    `left_out` says which were not used, and `censored` that trials of others were ended too early
    to tell. No batch is larger than `train_size`."""
    errors = errors or Errors()
    points = sorted(points)
    sizes, steps, resolutions = np.array(points, dtype=np.float64).reshape(-1, 3).T
    steps = np.maximum(steps, 1)
    skew = 0.0 if of_medians else SKEW_OF_MINIMA
    measured = None
    if len(points) >= ENOUGH_SIZES:
        variance = 0.0 if errors.known is None else float(np.diag(errors.known).mean())
        measured = measured_of(sizes, steps, resolutions, known_variance=variance)
    law = None if measured is None else choose_law(measured, largest=train_size)
    fit = None if law is None else fit_hyperbola(sizes, steps, resolutions, skew, errors.known)
    found = _Found()
    if measured is None or law is None or fit is None:
        pass
    elif not law.hyperbola_refused:
        found = _on_hyperbola(fit, sizes)
    elif law.curve is not None:
        found = _on_law(measured, law, sizes, steps, skew)
    else:
        found = _off_points(sizes, steps, law)
    return Scaling(
        workload=workload,
        recipe=recipe,
        goal=goal,
        perfect_scaling_until=found.perfect,
        perfect_scaling_from=found.first,
        max_useful_batch_size=found.useful,
        steps_min=found.steps_min,
        critical_batch_size=found.critical,
        critical_by_examples=found.by_examples,
        fit_residual_log2=found.residual_log2,
        law=law,
        largest=int(sizes[-1]) if len(sizes) else None,
        of_medians=of_medians,
        left_out=left_out,
        contributions=None
        if fit is None
        else errors.contributions(steps, resolutions, fit.scatter_log2),
        equal_quality=None
        if law is None or law.hyperbola_refused
        else at_equal_quality(sizes, steps, resolutions, errors),
        quality_unknown=errors.reason,
        verdict=_verdict(sizes, steps, law, found, tested, censored, of_medians, left_out),
    )


def at_equal_quality(
    sizes: NDArray[np.float64],
    steps: NDArray[np.float64],
    resolutions: NDArray[np.float64],
    errors: Errors,
) -> EqualQuality | None:
    """The answer that the curve would approach with ever more trials at each batch size."""
    if errors.shift is None or errors.of_shift is None:
        return None
    told = list(errors.told)
    left_out = tuple(int(size) for size in np.delete(sizes, told))
    seeds = None if errors.seeds is None else errors.seeds[told]
    known = errors.of_shift if seeds is None else errors.of_shift + np.diag(seeds)
    sizes, steps, apart = sizes[told], steps[told], resolutions[told]
    tuned = steps * 2**errors.shift
    fit = fit_hyperbola(sizes, tuned, apart * 2**errors.shift, known=known)
    low, high = fit.steps_min_interval
    lowest, highest = fit.critical_interval
    return EqualQuality(
        critical_batch_size=Estimate(value=fit.critical, low=lowest, high=highest),
        steps_min=Estimate(value=fit.steps_min, low=low, high=high),
        perfect_scaling_until=_on_curve(fit, sizes, PERFECT_TOLERANCE, 1 + PERFECT_TOLERANCE),
        max_useful_batch_size=_on_curve(fit, sizes, 1 / USEFUL_TOLERANCE, 0),
        critical_by_examples=_on_curve(fit, sizes, CRITICAL_TOLERANCE, 1 + CRITICAL_TOLERANCE),
        contributions=contributions_of(steps, apart, seeds, errors.of_shift, fit.scatter_log2),
        left_out=left_out,
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The transitions of one curve, from any of the ways to find them."""

    perfect: Estimate | None = None
    first: int | None = None
    useful: Estimate | None = None
    by_examples: Estimate | None = None
    steps_min: Estimate | None = None
    critical: Estimate | None = None
    residual_log2: float | None = None


def _on_hyperbola(fit: Hyperbola, sizes: NDArray[np.float64]) -> _Found:
    """The transitions on a fitted hyperbola, which depend less on single lucky trials than the
    points do."""
    low, high = fit.steps_min_interval
    lowest, highest = fit.critical_interval
    return _Found(
        perfect=_on_curve(fit, sizes, PERFECT_TOLERANCE, 1 + PERFECT_TOLERANCE),
        useful=_on_curve(fit, sizes, 1 / USEFUL_TOLERANCE, 0),
        by_examples=_on_curve(fit, sizes, CRITICAL_TOLERANCE, 1 + CRITICAL_TOLERANCE),
        steps_min=Estimate(value=fit.steps_min, low=low, high=high),
        critical=Estimate(value=fit.critical, low=lowest, high=highest),
        residual_log2=fit.residual_log2,
    )


def _on_law(
    measured: Measured,
    law: LawChoice,
    sizes: NDArray[np.float64],
    steps: NDArray[np.float64],
    skew: float,
) -> _Found:
    """The transitions on the curve of a law that is no hyperbola, which has no B_crit."""
    curve = law.curve
    assert curve is not None
    likely = fit_bend(measured, CONFIDENCE) if isinstance(curve, Bend) else None
    at = Transitions(curve, likely, sizes)
    freedom = len(sizes) - (3 if isinstance(curve, Bend) else 4)
    few = few_examples(sizes, steps, PERFECT_TOLERANCE)
    starves = not isinstance(curve, Bend) and few[0]
    return _Found(
        perfect=at.examples_within(PERFECT_TOLERANCE),
        first=int(sizes[few[0]]) if starves else None,
        useful=at.steps_within(USEFUL_TOLERANCE),
        by_examples=at.examples_within(CRITICAL_TOLERANCE),
        steps_min=steps_min_of(curve, likely, skew * float(np.sqrt(curve.squares / freedom))),
        residual_log2=float(np.sqrt(curve.squares / len(sizes))),
    )


def _off_points(sizes: NDArray[np.float64], steps: NDArray[np.float64], law: LawChoice) -> _Found:
    few = few_examples(sizes, steps, PERFECT_TOLERANCE)
    saturated = np.argmax(steps <= (1 + USEFUL_TOLERANCE) * steps.min())
    return _Found(
        perfect=Estimate(value=float(sizes[few[-1]])),
        first=int(sizes[few[0]]) if few[0] else None,
        useful=Estimate(value=float(sizes[saturated])),
        by_examples=Estimate(value=crossing(sizes, steps, CRITICAL_TOLERANCE)),
        residual_log2=law.residual_log2,
    )


def _on_curve(
    fit: Hyperbola, sizes: NDArray[np.float64], per_critical: float, per_smallest: float
) -> Estimate:
    """The transition at `per_critical` x B_crit + `per_smallest` x the smallest batch size, limited
    to the range tested. Steps x B is S_min (B + B_crit), which exceeds its minimum by the tolerance
    at tolerance x B_crit + (1 + tolerance) x B_smallest. Steps exceed S_min by the tolerance at
    B_crit / tolerance."""
    value, low, high = np.clip(
        [
            per_critical * critical + per_smallest * sizes[0]
            for critical in (fit.critical, *fit.critical_interval)
        ],
        sizes[0],
        sizes[-1],
    )
    return Estimate(value=float(value), low=float(low), high=float(high))


def _verdict(
    sizes: NDArray[np.float64],
    steps: NDArray[np.float64],
    law: LawChoice | None,
    found: _Found,
    tested: int,
    censored: bool,
    of_medians: bool,
    left_out: Sequence[str],
) -> str:
    if not len(sizes) and not left_out:
        never = "the goal was never reached" + ", in the median of repeats" * of_medians
        return "trials were ended too early to tell" if censored else never
    if law is None:
        return (
            f"too few batch sizes to tell where the curve bends: {len(sizes)} of {tested} can be "
            f"used, {ENOUGH_SIZES} are needed"
        )
    if steps.min() > 0.8 * steps.max():
        return FLAT
    if law.curve is None or found.first is not None:
        return _no_bend(law, found.first)
    if found.critical is not None and found.critical.value > sizes[-1]:
        return "still scaling at the largest batch size" + (" left" if left_out else " tested")
    return FITS if found.critical is not None else OTHERWISE


def _no_bend(law: LawChoice, first: int | None) -> str:
    """The verdict on a curve that does not follow a bend."""
    if first is not None:
        return STARVES.format(first)
    return RISES if law.rises else BENDS
