"""Parallel coordinates: trials as lines across their metaparameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from orchestrator.records import Value
from orchestrator.report.figures.style import (
    CLOSE_TO_FAR,
    FARTHEST,
    log2_axis,
    log10_axis,
    rounded,
    safe,
    styled,
)

UNREACHED = "#B3B8BD"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One metaparameter, with a value for each trial."""

    name: str
    scale: Literal["linear", "log", "reverse_log", "options"]
    values: Sequence[Value | None]
    """The values; None if a trial has no such metaparameter."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Trials, each with a value on every axis."""

    sizes: Sequence[int]
    axes: Sequence[Axis]
    steps: Sequence[int | None]
    """Steps to the goal; None if it was not reached."""
    over_fewest: Sequence[float | None]
    """Steps to the goal over the fewest steps at the same batch size."""

    @property
    def count(self) -> int:
        return len(self.sizes)


def parallel_coordinates(lines: Lines) -> go.Figure:
    """Draws batch size, metaparameters and steps to goal. Trials that did not reach the goal are
    grey and end at the top."""
    reached = [steps for steps in lines.steps if steps]
    never = 2 * max(reached)
    axes = [
        _scaled("batch size", [*lines.sizes], log2_axis(lines.sizes), math.log2),
        *map(_of, lines.axes),
        _steps([steps or never for steps in lines.steps], reached, never),
    ]
    # The best are drawn last: nothing covers them.
    far = [FARTHEST + 1 if x is None else min(math.log2(x), FARTHEST) for x in lines.over_fewest]
    order = sorted(range(lines.count), key=lambda trial: -far[trial])
    for axis in axes:
        axis["values"] = [axis["values"][trial] for trial in order]
    share = FARTHEST / (FARTHEST + 1)
    scale = [[share * place, colour] for place, colour in CLOSE_TO_FAR]
    grey = [[share + 0.001, UNREACHED], [1.0, UNREACHED]]
    figure = go.Figure(
        go.Parcoords(
            dimensions=axes,
            line={
                "color": [rounded(far[trial]) for trial in order], "colorscale": [*scale, *grey],
                "cmin": 0, "cmax": FARTHEST + 1,
            },
        )
    )  # fmt: skip
    styled(figure, "", "", height=420)
    figure.update_layout(margin={"t": 60, "b": 30, "l": 60, "r": 60}, font={"size": 13})
    return figure


def _steps(steps: Sequence[int], reached: Sequence[int], never: int) -> dict[str, Any]:
    ticks = log2_axis(reached)
    axis = _scaled("steps to goal", [*steps], ticks, math.log2)
    if never in steps:
        below = [n for n, tick in enumerate(axis["tickvals"]) if 2**tick <= max(reached)]
        axis["tickvals"] = [*(axis["tickvals"][n] for n in below), math.log2(never)]
        axis["ticktext"] = [*(axis["ticktext"][n] for n in below), "not reached"]
    return axis


def _of(axis: Axis) -> dict[str, Any]:
    name = safe(axis.name)
    known = [value for value in axis.values if value is not None]
    if axis.scale == "options":
        options = sorted({*known}, key=lambda value: (isinstance(value, str), str(value)))
        found = {
            "label": name, "values": [v if v is None else options.index(v) for v in axis.values],
            "tickvals": [*range(len(options))], "ticktext": [safe(option) for option in options],
        }  # fmt: skip
    else:
        found = _numbers(name, axis.scale, [None if v is None else float(v) for v in axis.values])
    return found if len(known) == len(axis.values) else _with_none(found)


def _numbers(name: str, scale: str, values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if scale == "log" and min(known) > 0:
        return _scaled(name, values, log10_axis(known, most=6), math.log10)
    if scale == "reverse_log" and max(known) < 1:
        below = [None if value is None else 1 - value for value in values]
        ticks = log10_axis([1 - value for value in known], most=6)
        return _scaled(f"1 - {name}", below, ticks, math.log10)
    low, high = min(known), max(known)
    steps = [low + (high - low) * n / 4 for n in range(5)]
    return {
        "label": name, "values": [None if value is None else rounded(value) for value in values],
        "tickvals": steps, "ticktext": [f"{step:.3g}" for step in steps],
    }  # fmt: skip


def _with_none(axis: dict[str, Any]) -> dict[str, Any]:
    """Places trials without the metaparameter below all others."""
    known = [*(value for value in axis["values"] if value is not None), *axis["tickvals"]]
    none = min(known) - 0.15 * max(max(known) - min(known), 1e-9)
    return axis | {
        "values": [rounded(none) if value is None else value for value in axis["values"]],
        "tickvals": [none, *axis["tickvals"]], "ticktext": ["none", *axis["ticktext"]],
    }  # fmt: skip


def _scaled(
    label: str,
    values: Sequence[float | None],
    ticks: Mapping[str, Any],
    log: Callable[[float], float],
) -> dict[str, Any]:
    """Scales values to a logarithmic axis, which this kind of figure lacks."""
    logs = [None if value is None else rounded(log(value)) for value in values]
    known = [value for value in logs if value is not None]
    within = [
        (place, text)
        for tick, text in zip(ticks["tickvals"], ticks["ticktext"], strict=True)
        if min(known) - 0.01 <= (place := log(tick)) <= max(known) + 0.01
    ]
    return {
        "label": label, "values": logs,
        "tickvals": [place for place, _ in within], "ticktext": [text for _, text in within],
    }  # fmt: skip
