"""A run of branches: everything that its page shows, and its two figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.estimates import Estimate
from orchestrator.analysis.forecasts import NoisePoint, along, courses_of
from orchestrator.analysis.schedules import BranchJudge, Confirmed
from orchestrator.analysis.words import critical_in_words, fifth_more_in_words, in_words
from orchestrator.records import Measurement, Study
from orchestrator.report.content import grouped
from orchestrator.report.style import (
    COLOURS,
    SYMBOLS,
    Drawing,
    evenly,
    guide,
    of_size,
    rounded,
    safe,
    shades,
    whiskers,
)
from orchestrator.results import RunFiles
from orchestrator.search import Branching, Fork

if TYPE_CHECKING:
    from orchestrator.planning.sweep import Sweep  # slow to load, and not needed for other pages

MOST_CURVES = 60
"""The most branches in the figure of the trunk's loss; beyond, fewer points are shown."""

APART = 1 / 75
"""Distance between marks at the same examples, which stand side by side, as a share of the axis."""

FURTHEST = 8
"""An interval is drawn up to this many times the largest value, and down likewise."""


@dataclass(frozen=True, kw_only=True)
class BranchCurve:
    """The loss of branches from one point at one batch size, as the mean over seeds."""

    at_examples: int
    batch_size: int
    factor: int
    """The batch size of these branches over the trunk's."""
    seeds: int
    rate: float
    """Learning rate of these branches over the trunk's."""
    examples: Sequence[float]
    """Examples since the beginning of the trunk."""
    losses: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class BranchContent:
    run: RunFiles
    sweep: Sweep
    total_examples: int
    """Number of examples of the whole trunk, if the trunk is trained to its end."""
    queue: Branching[Verdict]
    schedules: Mapping[str, Mapping[str, Any]]
    confirmed: Sequence[Confirmed]

    @property
    def trunk(self) -> Study:
        return self.queue.trunk.study

    @cached_property
    def by_length(self) -> list[list[Verdict]]:
        """The verdicts of each point, from the shortest branches to the longest."""
        return self.queue.judged()

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdict of each point from its longest branches."""
        return [found[-1] for found in self.by_length if found]

    @property
    def loss(self) -> str:
        assert self.sweep.branch is not None
        return self.sweep.branch.loss

    @property
    def factors(self) -> list[int]:
        assert self.sweep.branch is not None
        return sorted({*self.sweep.branch.factors})

    @property
    def points(self) -> list[int]:
        """The points of the trunk from which branches continue, in examples."""
        return [point.at_examples for point in self.queue.points]

    @cached_property
    def _measured(self) -> tuple[Measurement, ...]:
        found = [*self.queue.ended([self.trunk])]
        return found[0].measurements if found else ()

    @cached_property
    def trunk_losses(self) -> list[tuple[int, float]]:
        """(examples, loss) along the trunk."""
        return [
            (self.trunk.examples(one.step), rounded(one.metrics[self.loss], 6))
            for one in self._measured
            if self.loss in one.metrics
        ]

    @cached_property
    def noise(self) -> dict[int, NoisePoint]:
        """Maps examples to the noise scale measured there, along the trunk."""
        rows = [{"step": one.step, **one.metrics} for one in self._measured]
        found = along(courses_of(rows, self.trunk.batch_size))
        return {self.trunk.examples(point.step): point for point in found}

    @cached_property
    def curves(self) -> list[BranchCurve]:
        """The longest branches of each point at the learning rates that were chosen. Where there
        are too many points, only some of them are returned."""
        points = {point.at_examples: point for point in self.queue.points}
        rate = float(self.queue.trunk.params["learning_rate"])
        judge = BranchJudge(loss=self.loss, learning_rate=rate)
        most = max(1, MOST_CURVES // len(self.factors))
        return [
            curve
            for verdict in evenly(self.verdicts, most)
            for curve in self._curves_of(verdict, points[verdict.at_examples], judge)
        ]

    def _curves_of(self, verdict: Verdict, point: Fork, judge: BranchJudge) -> list[BranchCurve]:
        found = [*judge.branches(point, verdict.length, self.queue.ended(point.studies))]
        curves = []
        for cost in verdict.costs:
            judging = [
                each
                for each in found
                if (each.factor, each.rate) == (cost.factor, cost.rate)
                and each.seed >= point.choosing
            ]
            # One that diverged may have ended early.
            if judging and all(np.isfinite(each.loss).all() for each in judging):
                losses = np.mean([each.loss for each in judging], axis=0)
                curves.append(
                    BranchCurve(
                        at_examples=verdict.at_examples,
                        batch_size=cost.factor * verdict.batch_size,
                        factor=cost.factor,
                        seeds=len(judging),
                        rate=cost.rate,
                        examples=(verdict.at_examples + judging[0].examples).tolist(),
                        losses=[rounded(value, 6) for value in losses.tolist()],
                    )
                )
        return curves


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


def marks_of(content: BranchContent) -> dict[str, list[Mark]]:
    """The batch sizes along the trunk: those that were measured, and the noise scale."""
    known = [verdict for verdict in content.verdicts if verdict.is_known]
    scales = {examples: point.scale for examples, point in content.noise.items()}
    return {
        "local critical batch size": [
            Mark(v.at_examples, v.critical, f"local critical batch size {critical_in_words(v)}")
            for v in known
            if v.critical is not None
        ],
        "noise scale": [
            Mark(x, scales[x], f"noise scale {in_words(scales[x])}")
            for x in content.points
            if x in scales
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
    noise: Mapping[int, NoisePoint],
    schedules: Mapping[str, Mapping[str, Any]],
    *,
    trunk: int,
    largest: int,
    until: int,
) -> Drawing:
    """Draws each series as marks with intervals, the noise scale by examples as a line, schedules
    as steps, and lines at the smallest (the trunk's) and the largest batch size measured."""
    line = {x: one.scale.value for x, one in noise.items() if x and math.isfinite(one.scale.value)}
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


def trunk_and_branches(
    trunk: Sequence[tuple[float, float]],
    points: Sequence[float],
    curves: Sequence[BranchCurve],
    metric: str,
) -> Drawing:
    """Draws the loss along the trunk with its points marked, and the branches: blue at the trunk's
    batch size, the others from small (dark) to large (bright) batch sizes."""
    figure = Drawing()
    ordered = sorted(curves, key=lambda curve: (curve.batch_size, curve.at_examples))
    by_size = grouped(ordered, lambda curve: curve.batch_size)
    # The trunk's own batch is what others are held to; the darkest shade can't be seen on black.
    colours = [COLOURS[0], *shades(len(by_size))[1:]]
    for (size, mine), colour in zip(by_size.items(), colours, strict=False):
        for curve in mine:
            figure.add({
                "x": curve.examples, "y": curve.losses, "name": f"batch size {size:,}",
                "mode": "lines", "opacity": 0.8, "legendgroup": str(size),
                "line": {"color": colour, "width": 2 if curve.factor == 1 else 1},
                "showlegend": curve is mine[0],
                "hovertemplate": f"{of_size(size)}from {curve.at_examples:,} examples on<br>"
                f"learning rate x{curve.rate:.3g}, {curve.seeds} seeds<br>"
                "%{x:,} examples: %{y:.4g}<extra></extra>",
            })  # fmt: skip
    drawn = [(x, y) for x, y in trunk if x > 0 and math.isfinite(y)]
    marked = [(x, y) for x, y in drawn if x in points]
    line = {"mode": "lines", "line": {"color": COLOURS[1], "width": 2.5}}
    diamond = {"color": COLOURS[1], "size": 11, "symbol": "diamond"}
    for name, some, text, look in (
        ("trunk", drawn, "trunk", line),
        ("points", marked, "branches go on from here", {"mode": "markers", "marker": diamond}),
    ):
        hover = f"<b>{text}</b><br>%{{x:,}} examples: %{{y:.4g}}<extra></extra>"
        x, y = ([at[axis] for at in some] for axis in (0, 1))
        figure.add({"x": x, "y": y, "name": name, "hovertemplate": hover, **look})
    figure.styled("Examples seen", safe(metric))
    values = [y for _, y in drawn] + [y for curve in curves for y in curve.losses]
    seen = [x for x, _ in drawn] + [x for curve in curves for x in curve.examples]
    figure.log10("x", seen)
    if values and min(values) > 0 and max(values) > 10 * min(values):
        figure.log10("y", values)
    return figure
