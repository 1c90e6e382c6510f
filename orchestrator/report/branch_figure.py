"""The figure of a run of branches: batch sizes along its trunk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.forecasts import along, courses_of
from orchestrator.analysis.words import critical_in_words, fifth_more_in_words, in_words
from orchestrator.report.style import COLOURS, SYMBOLS, Drawing, guide, safe, whiskers

if TYPE_CHECKING:
    from orchestrator.analysis.branch_answer import Answer  # slow to load, only this page needs it

APART = 1 / 75
"""Distance between marks at the same examples, which stand side by side, as a share of the axis."""

FURTHEST = 8
"""An interval is drawn up to this many times the largest value, and down likewise."""


def noise_of(answer: Answer) -> dict[int, Estimate]:
    """Maps examples to the noise scale measured there, along the trunk."""
    trunk = answer.trunk
    rows = [
        {"step": one.step, **one.metrics}
        for ended in answer.queue.ended([trunk])
        for one in ended.measurements
    ]
    courses = courses_of(rows, trunk.batch_size)
    return {
        trunk.examples(step): scale for course in courses for step, scale in along(course).items()
    }


class Mark(NamedTuple):
    at_examples: int
    batch_size: Estimate
    said: str
    bound: float | None = None
    """A lower bound, drawn where the value is infinite; None for that of the interval."""

    @property
    def value(self) -> float:
        size = self.batch_size
        if math.isfinite(size.value):
            return size.value
        return size.low or 0.0 if self.bound is None else self.bound


def marks_of(answer: Answer, noise: Mapping[int, Estimate]) -> dict[str, list[Mark]]:
    """The batch sizes along the trunk: those that were measured, and the noise scale."""
    known = [verdict for verdict in answer.verdicts if verdict.is_known]
    points = [point.at_examples for point in answer.queue.points]
    return {
        "local critical batch size": [
            Mark(v.at_examples, v.critical, f"local critical batch size {critical_in_words(v)}")
            for v in known
            if v.critical is not None
        ],
        "noise scale": [
            Mark(x, noise[x], f"noise scale {in_words(noise[x])}") for x in points if x in noise
        ],
        "a fifth more examples": [
            Mark(
                verdict.at_examples,
                verdict.fifth_more_batch_size,
                f"a fifth more examples at batch size {fifth_more_in_words(verdict)}",
                bound=verdict.sure_batch_size,
            )
            for verdict in known
        ],
    }


def batch_sizes_along(
    series: Mapping[str, Sequence[Mark]],
    noise: Mapping[int, Estimate],
    schedules: Mapping[str, Mapping[str, Any]],
    *,
    trunk: int,
    largest: int,
    until: int,
) -> Drawing:
    """Draws each series as marks with intervals, the noise scale by examples as a line, schedules
    as steps, and lines at the smallest (the trunk's) and the largest batch size measured."""
    line = {x: scale.value for x, scale in noise.items() if x and math.isfinite(scale.value)}
    marks = [mark for several in series.values() for mark in several]
    beginnings = [*line, *(mark.at_examples for mark in marks if mark.at_examples)]
    first = min(beginnings, default=1) / 1.3
    stages = {name: schedule["stages"] for name, schedule in schedules.items()}
    sizes = [stage["batch_size"] for several in stages.values() for stage in several]
    edges = _edges(marks, [*sizes, *line.values()], trunk, largest)
    figure = Drawing()
    figure.add(guide([first, until], [trunk, trunk], "trunk's batch size"))
    figure.add(guide([first, until], [largest, largest], "largest measured", "dot"))
    looks = ((COLOURS[2], "solid", 4), (COLOURS[3], "dash", 2.5))
    for (name, several), (colour, dash, width) in zip(stages.items(), looks, strict=False):
        at = [
            (
                max(stage["examples"], first),
                stage["batch_size"],
                f"<b>{safe(name)} schedule</b><br>from {stage['examples']:,} examples on: batch "
                f"size {stage['batch_size']:,}, learning rate x{stage['learning_rate']:.3g}",
            )
            for stage in several
        ]
        stairs = {"color": colour, "dash": dash, "width": width, "shape": "hv"}
        figure.line(f"{name} schedule", [*at, (until, *at[-1][1:])], {"line": stairs}, "lines")
    colours = (COLOURS[0], COLOURS[4], COLOURS[1])
    noise_line = guide([*line], [*line.values()], "noise scale", "dot", 1, colours[1])
    figure.add({**noise_line, "legendgroup": "noise scale", "showlegend": False})
    for number, (name, several) in enumerate(series.items()):
        apart = (until / first) ** (APART * (number - 1))
        look = {"color": colours[number], "symbol": SYMBOLS[number]}
        figure.add(*_marks(name, several, apart, look, edges))
    figure.styled("Examples seen", "Batch size", height=520)
    figure.log10("x", [first, until])
    figure.log2("y", edges)
    return figure


def _edges(
    marks: Sequence[Mark], sizes: Sequence[float], trunk: int, largest: int
) -> tuple[float, float]:
    """The smallest and the largest batch size of the axis. It covers all values except those far
    from the measured range, and intervals as far as they do not extend much beyond it."""
    values = [*sizes, *(mark.value for mark in marks)]
    within = [y for y in values if 1 / 2 <= y <= largest * FURTHEST]
    low, high = min([trunk, *within]), max([largest, *within])
    ends = [
        end
        for mark in marks
        for end in (mark.batch_size.low, mark.batch_size.high)
        if end is not None and low / FURTHEST <= end <= high * FURTHEST
    ]
    ends = [low, high, *ends]
    return 2 ** math.floor(math.log2(min(ends))), 2 ** math.ceil(math.log2(max(ends)))


def _marks(
    name: str,
    marks: Sequence[Mark],
    apart: float,
    look: Mapping[str, str],
    edges: tuple[float, float],
) -> list[dict[str, Any]]:
    """The marks of a series, hollow if they are only a bound. An interval that continues beyond the
    figure reaches its edge."""
    drawn = [_drawn(mark, edges) for mark in marks]
    trace = {
        "mode": "markers", "name": name, "legendgroup": name,
        "x": [mark.at_examples * apart for mark in marks], "y": [one.value for one in drawn],
        "hovertext": [f"<b>after {m.at_examples:,} examples</b><br>{m.said}" for m in marks],
        "hoverinfo": "text",
        "error_y": whiskers(drawn, thickness=1.5, width=3, color=look["color"]),
        "marker": {
            "color": look["color"], "size": 11, "line": {"width": 2, "color": look["color"]},
            "symbol": [
                look["symbol"] + "-open" * (mark.batch_size.value != one.value)
                for mark, one in zip(marks, drawn, strict=True)
            ],
        },
    }  # fmt: skip
    return [trace] if marks else []


def _drawn(mark: Mark, edges: tuple[float, float]) -> Estimate:
    """The height of a mark and both ends of its interval, as far as they are drawn."""
    ends = (mark.value, mark.batch_size.low, mark.batch_size.high)
    within = [min(max(end, edges[0]), edges[1]) for end in ends if end is not None]
    return Estimate(value=within[0], low=min(within), high=max(within))
