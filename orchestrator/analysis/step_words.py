"""Describes the steps of `next_trials` in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.analysis.additions import Addition
from orchestrator.analysis.known_points import KnownCurve
from orchestrator.analysis.next_trials import FEW_DOUBLINGS, Effect, Step
from orchestrator.analysis.words import in_time


def addition_in_words(addition: Addition) -> str:
    """Says what is trained."""
    of = ", ".join(addition.recipes)
    sizes = _listed(addition.batch_sizes)
    several = "sizes" if len(addition.batch_sizes) > 1 else "size"
    if addition.kind == "batch size":
        why = ", which decides between the laws" if addition.decides else ""
        return f"one more batch size, {sizes}, for {of}{why}"
    if addition.kind == "range":
        return (
            f"a wider range for {of}, whose best points at batch {several} {sizes} lie near the "
            f"end of their ranges"
        )
    numbers = sorted({number for _, number in addition.totals})
    many = " to ".join(f"{number:,}" for number in dict.fromkeys((numbers[0], numbers[-1])))
    return f"{many} {addition.kind} for {of} at batch {several} {sizes}"


def effect_in_words(effect: Effect) -> str:
    """Says how the interval of one curve would change."""
    return f"{width_in_words(effect.before)} -> {width_in_words(effect.after)}"


def width_in_words(width: float) -> str:
    """The ratio of the ends of an interval that is `width` doublings wide."""
    return f"x{2**width:,.3g}" if width < 2 * 12 else "unbounded"


def price_in_words(step: Step, money: float | None = None) -> str:
    """The price of a step: trainings, examples and, if known, device-time and money."""
    amount = step.amount
    said = [f"{amount.trainings:,.0f} trainings", f"{_short(amount.examples)} examples"]
    if amount.seconds is not None:
        said.append(f"{in_time(amount.seconds)} of one device")
    if money is not None:
        said.append(f"{money:,.2f} in money")
    return ", ".join(said)


def what_is_left(curve: KnownCurve) -> str:
    """Says where the uncertainty of a curve comes from, as standard deviations of a point in
    percent."""
    points = curve.points
    parts = {
        "the seeds of its repeats": sum(point.seeds for point in points) / len(points),
        "the finite number of trials": sum(point.finite for point in points) / len(points),
        "the distance between measurements": sum(p.rounding for p in points) / len(points),
        "unexplained scatter about the law": curve.unexplained,
    }
    told = [
        f"{_percent(variance)} from {name}"
        for name, variance in sorted(parts.items(), key=lambda part: -part[1])
        if _percent(variance) != "0 %"
    ]
    origin = ", ".join(told) or "of unknown origin"
    return f"the error of a point is {_percent(curve.variance)}: {origin}"


def verdict_on(curve: KnownCurve, steps: Sequence[Step]) -> str | None:
    """Says why nothing is advised for a curve; None if something is advised."""
    helped = any(
        (effect.workload, effect.recipe, effect.goal) == (curve.workload, curve.recipe, curve.goal)
        and effect.after < effect.before
        for step in steps
        for effect in step.effects
    )
    if curve.width <= FEW_DOUBLINGS:
        return f"the curve needs no more trainings. What remains: {what_is_left(curve)}"
    if helped:
        return None
    return f"nothing cheap would narrow its interval. What remains: {what_is_left(curve)}"


def _percent(variance: float) -> str:
    return f"{100 * (2 ** math.sqrt(variance) - 1):.2g} %"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


def _short(examples: float) -> str:
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if examples >= 2 * size:
            return f"{examples / size:.3g} {unit}"
    return f"{examples:,.0f}"
