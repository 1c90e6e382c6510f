"""Decides which law a curve of steps to goal against batch size follows, if the points allow it.

The laws (law_fits.py, law_useful.py) are bends of any exponent and the law with a smallest useful
batch size. Two of the bends have names: the hyperbola, and straight-then-flat. A law is named only
if the measurements rule the others out. benchmarks/laws.py measures how often this goes wrong for
curves whose law is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import fdtri

from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.hyperbola import rounding_variance
from orchestrator.analysis.law_fits import (
    LARGEST_SOFTNESS,
    Bend,
    BendFit,
    Floats,
    Measured,
    best_bend,
    fit_bend,
)
from orchestrator.analysis.law_sizes import Contender, deciding_size
from orchestrator.analysis.law_useful import (
    SmallestUseful,
    fit_departure,
    fit_useful,
    left_out_errors,
)

Law = Literal[
    "hyperbola",
    "between",
    "straight then flat",
    "softer",
    "smallest useful batch",
    "undecided",
    "none",
]

LAW_CONFIDENCE = 0.98
"""Confidence of the exponent's interval, which decides between bends. With 90 %, as in all other
intervals, one hyperbola in ten would be called something else."""

HYPERBOLA, STRAIGHT_THEN_FLAT = 1.0, 0.0
"""Softness, 1 / exponent, of the two named bends."""

SHARPEST_HYPERBOLA, SOFTEST_STRAIGHT_THEN_FLAT = 1 / 1.75, 1 / 2.5
"""A curve is called a hyperbola only if exponents of 1.75 or more are ruled out, and straight then
flat only if exponents of 2.5 or less are."""

GOOD_FIT_LOG2 = 0.25
"""Scatter about the curve beyond the known errors, as a standard deviation in doublings, up to
which a law is said to fit."""

ENOUGH_FOR_SMALLEST = 7
"""Number of batch sizes from which on the law with a smallest useful batch size may be chosen: it
has four parameters."""

LEAST_FOR_DOUBT = 5
"""Number of batch sizes from which on that law may make the choice of another law undecided."""

CLEARLY_BETTER, NOT_CLEARLY_WORSE = 3.0, 0.7
"""Ratios of mean squared errors at inner batch sizes that were left out of the fits: the error of
the best bend over that of the law with a smallest useful batch size. Above the first ratio the
latter law is chosen; between the two ratios the law is undecided."""

CLEARLY_FARTHER = 3.0
"""Ratio of squared distances, of the law with a smallest useful batch size over the best bend,
above which that law is dropped. Then no points are left out to compare the two, which would take
most of the time, and with fewer than seven points that law leaves nothing undecided."""

RISE_TOLERANCE = 0.2
"""Share by which the steps at the largest batch size may exceed the fewest without counting as a
rise."""

LEAST_SCATTER_LOG2 = 0.002
"""Smallest standard deviation of log2 of the steps that is assumed, since steps are whole
numbers."""

DEPARTURE_CONFIDENCE = 0.99
"""Confidence of the tests whether steps rise again or examples fall, which no bend allows."""


@dataclass(frozen=True, kw_only=True)
class LawChoice:
    """The law of one curve, or the two laws between which it is undecided."""

    law: Law
    """Name of the law; "none" if no law fits."""
    between: tuple[Law, ...]
    """If the law is undecided, the two laws in question; the one closer to the points is first."""
    curve: Bend | SmallestUseful | None
    """The curve of the law. If it is undecided: the hyperbola, or, if that is refused, the closest
    bend. None if no law fits."""
    exponent: Estimate | None
    """Exponent of the bend, which is 1 for the hyperbola. Its interval has LAW_CONFIDENCE."""
    hyperbola_refused: bool
    rises: bool
    """Whether steps rise again at the largest batch sizes."""
    residual_log2: float
    """Root mean square distance of the points from the closest curve, in doublings."""
    deciding_size: int | None
    """If the law is undecided, the batch size at which a measurement would best tell the two laws
    apart."""

    def steps(self, sizes: Sequence[float] | Floats) -> Floats | None:
        """Steps to goal of the curve at these batch sizes."""
        if self.curve is None:
            return None
        steps: Floats = np.exp2(self.curve.log_steps(np.log2(np.asarray(sizes, dtype=np.float64))))
        return steps

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measured_of(
    sizes: Floats, steps: Floats, resolutions: Floats, *, known_variance: float = 0.0
) -> Measured:
    """The logarithms of one curve. A goal was passed anywhere within the `resolution` of its steps;
    `known_variance` is the variance of log2 of the steps that comes from other known errors."""
    rounding = float(rounding_variance(steps, resolutions).mean())
    return Measured(
        log_sizes=np.log2(sizes),
        logs=np.log2(steps),
        known_variance=max(rounding + known_variance, LEAST_SCATTER_LOG2**2),
    )


def choose_law(
    measured: Measured, *, largest: int | None = None, recommend: bool = True
) -> LawChoice:
    """The law of at least four points. `largest` is the largest batch size that may be recommended,
    for example the number of training examples. Without `recommend`, no deciding batch size is
    searched, which would take most of the time."""
    fit = fit_bend(measured, LAW_CONFIDENCE)
    hyperbola = best_bend(measured, HYPERBOLA)
    refused = hyperbola.squares > fit.allowed
    useful = _useful_if_possible(measured, fit)
    rises = _departs(measured, fit.best, upwards=True)
    law = "none" if rises else _law(measured, fit, useful)
    refused |= law in {"none", "smallest useful batch"}
    refused |= not _fits(hyperbola.squares, measured)
    curve: Bend | SmallestUseful = fit.best if refused else hyperbola
    if law == "straight then flat":
        curve = best_bend(measured, STRAIGHT_THEN_FLAT)
    elif useful is not None and (
        law == "smallest useful batch" or not _fits(fit.best.squares, measured)
    ):
        curve = useful[0]
    closest = fit.best.squares if useful is None else min(fit.best.squares, useful[0].squares)
    pair = _contenders(measured, fit, useful) if law == "undecided" else ()
    return LawChoice(
        law=law,
        between=tuple(contender.name for contender in pair),
        curve=None if law == "none" else curve,
        exponent=None if law in {"none", "smallest useful batch"} else _exponent(fit),
        hyperbola_refused=bool(refused),
        rises=rises,
        residual_log2=math.sqrt(closest / len(measured.logs)),
        deciding_size=(
            deciding_size(measured, *pair, *_also_likely(measured, fit, useful), largest=largest)
            if pair and recommend
            else None
        ),
    )


def _law(measured: Measured, fit: BendFit, useful: tuple[SmallestUseful, float] | None) -> Law:
    """The law of a curve whose steps do not rise."""
    many = len(measured.logs) >= ENOUGH_FOR_SMALLEST
    if useful is not None and useful[1] > CLEARLY_BETTER:
        return "smallest useful batch"
    if useful is not None and many:
        return "undecided"
    if not _fits(fit.best.squares, measured):
        return "none"
    if not many and _departs(measured, fit.best, upwards=False):
        return "none"
    return "undecided" if useful is not None else _law_of_bends(measured, fit)


def _fits(squares: float, measured: Measured) -> bool:
    return squares / len(measured.logs) <= GOOD_FIT_LOG2**2 + measured.known_variance


def _law_of_bends(measured: Measured, fit: BendFit) -> Law:
    def is_likely(softness: float) -> bool:
        return best_bend(measured, softness).squares <= fit.allowed

    hyperbola, straight = is_likely(HYPERBOLA), is_likely(STRAIGHT_THEN_FLAT)
    if hyperbola and fit.best.softness > SHARPEST_HYPERBOLA and not is_likely(SHARPEST_HYPERBOLA):
        return "hyperbola"
    softest = SOFTEST_STRAIGHT_THEN_FLAT
    if straight and fit.best.softness < softest and not is_likely(softest):
        return "straight then flat"
    if hyperbola or straight:
        return "undecided"
    return "between" if fit.best.softness < HYPERBOLA else "softer"


def _useful_if_possible(measured: Measured, fit: BendFit) -> tuple[SmallestUseful, float] | None:
    """The law with a smallest useful batch size, and the ratio by which its error is smaller at
    points that were left out. None if it is clearly worse than the best bend. With fewer than seven
    points it can only make the law undecided."""
    count = len(measured.logs)
    if count < LEAST_FOR_DOUBT:
        return None
    useful = fit_useful(measured)
    falls = useful.log_fewest > measured.log_sizes[0]
    if count < ENOUGH_FOR_SMALLEST:
        near = useful.squares / (count - 4) < CLEARLY_FARTHER * fit.best.squares / (count - 3)
        return (useful, 1.0) if near and falls else None
    far = fit.best.squares + count * measured.known_variance
    if not _fits(useful.squares, measured) or useful.squares > CLEARLY_FARTHER * far:
        return None
    bends, usefuls = left_out_errors(measured, fit.best, useful)
    floor = measured.known_variance + 1e-9
    ratio = (bends + floor) / (usefuls + floor)
    if not falls:
        ratio = min(ratio, CLEARLY_BETTER)  # undecided, since no tested batch size was too small
    return (useful, ratio) if ratio > NOT_CLEARLY_WORSE else None


def _departs(measured: Measured, best: Bend, *, upwards: bool) -> bool:
    """Whether steps rise again at the largest batch sizes (`upwards`), or examples fall at the
    smallest ones. An F test compares a bend that has such an end with a bend that has none."""
    freedom = len(measured.logs) - 4
    rise = measured.logs[-1] - measured.logs.min()
    if freedom < 1 or (upwards and rise < math.log2(1 + RISE_TOLERANCE)):
        return False
    squares = fit_departure(measured, best, upwards=upwards)
    variance = max(squares / freedom, measured.known_variance) + 1e-12
    return best.squares - squares > variance * float(fdtri(1, freedom, DEPARTURE_CONFIDENCE))


def _exponent(fit: BendFit) -> Estimate:
    low, high = float(fit.softness.min()), float(fit.softness.max())
    return Estimate(
        value=1 / fit.best.softness if fit.best.softness else math.inf,
        low=1 / high if high < LARGEST_SOFTNESS else 0.0,
        high=1 / low if low else math.inf,
    )


def _contenders(
    measured: Measured, fit: BendFit, useful: tuple[SmallestUseful, float] | None
) -> tuple[Contender, Contender]:
    """The two laws between which the points are undecided, the closer one first. They are the ends
    of the likely range, or a named law if it lies in that range."""
    if useful is not None:
        bend = fit.best.softness
        pair = [
            Contender(name=_name(bend), fit=partial(best_bend, softness=bend)),
            Contender(name="smallest useful batch", fit=fit_useful),
        ]
    else:
        low, high = fit.softness.min(), fit.softness.max()
        pair = [
            Contender(name=_name(end), fit=partial(best_bend, softness=end))
            for end in (float(max(low, STRAIGHT_THEN_FLAT)), float(min(high, HYPERBOLA)))
        ]
    first, second = sorted(pair, key=lambda contender: contender.fit(measured).squares)
    return first, second


def _also_likely(
    measured: Measured, fit: BendFit, useful: tuple[SmallestUseful, float] | None
) -> list[Contender]:
    """The law with a smallest useful batch size, if two bends are in question and the points are as
    likely to follow it as either. It may need the fewest examples between two batch sizes, so that
    no test of the points that exist would find it."""
    too_few = len(measured.logs) < ENOUGH_FOR_SMALLEST
    if useful is not None or too_few or fit_useful(measured).squares > fit.allowed:
        return []
    return [Contender(name="smallest useful batch", fit=fit_useful)]


def _name(softness: float) -> Law:
    if softness == HYPERBOLA:
        return "hyperbola"
    if softness <= 0.01:
        return "straight then flat"
    return "between" if softness < HYPERBOLA else "softer"
