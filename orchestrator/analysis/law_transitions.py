"""Finds where a curve that is no hyperbola leaves perfect scaling and where scaling ends, by its
law or by the points alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.law_fits import Bend, BendFit, Floats, bend_of
from orchestrator.analysis.law_useful import SmallestUseful

GRID = 513
"""Number of batch sizes that are tried from the smallest to the largest."""

Curve = Bend | SmallestUseful


class Transitions:
    """The transitions of one curve within the tested batch sizes. Their intervals hold the
    transitions of all likely bends; the law with a smallest useful batch size has no intervals."""

    def __init__(self, curve: Curve, likely: BendFit | None, sizes: Floats) -> None:
        self._curve, self._likely = curve, likely
        self._logs = np.linspace(np.log2(sizes[0]), np.log2(sizes[-1]), GRID)

    def examples_within(self, tolerance: float) -> Estimate:
        """The largest batch size whose examples exceed the fewest by at most this share."""

        def largest(steps: Floats) -> Floats:
            examples = steps + self._logs
            few = examples <= examples.min(axis=-1, keepdims=True) + np.log2(1 + tolerance)
            found: Floats = self._logs[GRID - 1 - few[..., ::-1].argmax(axis=-1)]
            return found

        return self._estimate(largest)

    def steps_within(self, tolerance: float) -> Estimate:
        """The smallest batch size whose steps exceed the fewest that any batch size would need by
        at most this share; the largest tested one if there is none."""

        def smallest(steps: Floats) -> Floats:
            few = steps <= np.log2(1 + tolerance)
            found: Floats = self._logs[np.where(few.any(axis=-1), few.argmax(axis=-1), GRID - 1)]
            return found

        return self._estimate(smallest)

    def _estimate(self, place: Callable[[Floats], Floats]) -> Estimate:
        value = float(2 ** place(self._curve.log_steps(self._logs) - self._curve.level))
        if self._likely is None:
            return Estimate(value=value)
        every = bend_of(self._likely.log_bend[:, None] - self._logs, self._likely.softness[:, None])
        ends = 2 ** place(every)
        return Estimate(
            value=value, low=min(value, float(ends.min())), high=max(value, float(ends.max()))
        )


def steps_min_of(curve: Curve, likely: BendFit | None, skew: float) -> Estimate:
    """S_min of a curve, whose logarithm is `skew` doublings too high."""
    value = float(2 ** (curve.level - skew))
    if likely is None:
        return Estimate(value=value)
    low, high = (likely.level - likely.reach).min(), (likely.level + likely.reach).max()
    return Estimate(value=value, low=float(2 ** (low - skew)), high=float(2 ** (high - skew)))


def few_examples(sizes: Floats, steps: Floats, tolerance: float) -> NDArray[np.int64]:
    """The indices of the batch sizes at which steps x batch size is near its minimum."""
    examples = sizes * steps
    return np.flatnonzero(examples <= (1 + tolerance) * examples.min())


def crossing(sizes: Floats, steps: Floats, tolerance: float) -> float:
    """The batch size, between two tested ones, above which the examples of a curve exceed the
    fewest by more than the tolerance."""
    place = int(few_examples(sizes, steps, tolerance)[-1])
    if place == len(sizes) - 1:
        return float(sizes[-1])
    examples = np.log(sizes * steps)
    bound = examples.min() + np.log(1 + tolerance)
    share = (bound - examples[place]) / (examples[place + 1] - examples[place])
    return float(sizes[place] * (sizes[place + 1] / sizes[place]) ** share)
