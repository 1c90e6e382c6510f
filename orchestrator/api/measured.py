"""The answer of a curve that was measured elsewhere, from numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from orchestrator.analysis import Scaling, scalings
from orchestrator.records import MANY, BadInput, wrong_value
from orchestrator.results import FrontierRow
from orchestrator.results.repeats import repeats_from


def scaling(
    batch_sizes: Iterable[Any],
    steps: Iterable[Any],
    *,
    resolution: float | Iterable[float] = 0,
    name: str = "curve",
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
    number, or one for each entry. 0: the goal was watched at every step.

    `name` is what sentences call the curve."""
    draws = _draws(batch_sizes, steps, resolution)
    several = any(len(of_size) > 1 for of_size in draws.values())
    rows = []
    for size, of_size in sorted(draws.items()):
        fewest, apart = min(of_size)
        reached = math.isfinite(fewest)
        row: dict[str, Any] = {
            "steps": fewest if reached else None,
            "resolution": apart if reached else None,
            "repeats": repeats_from(of_size) if several else None,
        }
        rows.append(
            FrontierRow(
                workload="", recipe=name, optimizer="", goal="", batch_size=size, reached=reached,
                censored=False, trials={}, trials_used=1, warnings=(), **row,
            )
        )  # fmt: skip
    return scalings(rows)[0]


def _draws(
    batch_sizes: Iterable[Any], steps: Iterable[Any], resolution: float | Iterable[float]
) -> dict[int, list[tuple[float, int]]]:
    """Batch size -> (steps, resolution) of each seed."""
    for what, given in (("`batch_sizes`", batch_sizes), ("`steps`", steps)):
        if not isinstance(given, Iterable) or isinstance(given, str):
            raise wrong_value(what, "a list, an array or a column", given)
    sizes, entries = [*batch_sizes], [*steps]
    apart = [*resolution] if isinstance(resolution, Iterable) else [resolution] * len(sizes)
    if not len(sizes) == len(entries) == len(apart) or not sizes:
        raise BadInput(
            f"`batch_sizes`, `steps` and `resolution` must have an entry each for the same batch "
            f"sizes, but have {len(sizes):,}, {len(entries):,} and {len(apart):,}.",
            code="wrong-value",
        )
    found: dict[int, list[tuple[float, int]]] = {}
    for size, entry, gap in zip(sizes, entries, apart, strict=True):
        if not 1 <= (number := _number("a batch size", size)) <= MANY or number != int(number):
            raise wrong_value("a batch size", f"a whole number from 1 to {MANY:,}", size)
        if not 0 <= _number("`resolution`", gap) < math.inf:
            raise wrong_value("`resolution`", "a number of steps, 0 or more", gap)
        seeds = entry if isinstance(entry, Iterable) and not isinstance(entry, str) else [entry]
        if not (seeds := [*seeds]):
            raise BadInput(f"batch size {size} has no steps: leave it out.", code="empty")
        for each in seeds:
            taken = math.inf if each is None else _number("steps", each)
            if taken <= 0:
                raise wrong_value("steps", "above 0, or None for never", each)
            draw = (math.inf, 0) if math.isnan(taken) else (taken, round(gap))
            found.setdefault(int(size), []).append(draw)
    return found


def _number(what: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise wrong_value(what, "a number", value) from None
