"""The answer of a curve that was measured elsewhere, from numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from orchestrator.analysis import Scaling, scalings
from orchestrator.records import MANY, BadInput, wrong_value
from orchestrator.results import FrontierRow
from orchestrator.results.repeats import repeats_from


def scaling(
    batch_sizes: Iterable[Any], steps: Iterable[Any], *, resolution: float | Iterable[float] = 0
) -> Scaling:
    """Answers how far the batch size scales, from steps that were measured elsewhere. Each number
    of the answer has `value`, `low` and `high`, the ends of its 90 % interval.

    `batch_sizes` are examples per step: a list, an array or a column of a table. It takes four or
    more that reached the goal in ten steps or more.

    `steps` are the steps to goal, one entry for each of these. If several seeds were trained, an
    entry is the list of their steps, or a batch size stands there once for each seed; the answer is
    then about their medians, and seeds are part of the intervals. None, NaN or infinity stands for
    a training that never reached the goal.

    `resolution` is the number of steps between two measurements where the goal was passed: one
    number, or one for each entry. 0: the goal was watched at every step."""
    try:
        if isinstance(batch_sizes, str) or isinstance(steps, str):
            raise TypeError("a text is none")
        sizes, entries = [*batch_sizes], [*steps]
        gaps = np.broadcast_to(np.asarray(resolution), len(sizes))
        rows = zip(sizes, entries, gaps, strict=True)
        draws = [(size, each, gap) for size, entry, gap in rows for each in np.ravel(entry)]
        size, taken, gap = np.array(draws, dtype=np.float64).T
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"`batch_sizes`, `steps` and `resolution` must be numbers, with an entry each for the "
            f"same batch sizes: {error}.",
            code="wrong-value",
        ) from None
    taken[np.isnan(taken)] = math.inf
    whole = (size >= 1) & (size <= MANY) & (size % 1 == 0)
    for what, numbers, fits, form in (
        ("a batch size", size, whole, f"a whole number from 1 to {MANY:,}"),
        ("steps", taken, taken > 0, "above 0, or None for never"),
        ("`resolution`", gap, (gap >= 0) & (gap < math.inf), "a number of steps, 0 or more"),
    ):
        if not fits.all():
            raise wrong_value(what, form, float(numbers[~fits][0]))
    found, several = [], len(draws) > len(np.unique(size))
    for each in np.unique(size).tolist():
        pairs = np.stack([taken, gap.round()])[:, size == each].T.tolist()
        seeds: list[Any] = [(steps, int(apart)) for steps, apart in pairs]
        fewest, apart = min(seeds) if math.isfinite(min(seeds)[0]) else (None, None)
        found.append(
            FrontierRow(
                workload="", recipe="curve", optimizer="", goal="", batch_size=int(each),
                reached=fewest is not None, steps=fewest, resolution=apart,
                repeats=repeats_from(seeds) if several else None,
                censored=False, trials={}, trials_used=1, warnings=(),
            )
        )  # fmt: skip
    return scalings(found)[0]
