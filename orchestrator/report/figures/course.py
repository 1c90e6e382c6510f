"""The course of things: what the winners measured, and when which trial ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from orchestrator.records import Goal
from orchestrator.report.figures.style import (
    COLOURS,
    GUIDE,
    guide,
    log10_axis,
    safe,
    shades,
    styled,
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What one trial measured in one metric."""

    recipe: str
    batch_size: int
    trial: int
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Span:
    """When a trial was trained."""

    study: str
    trial: int
    status: str
    started: float
    """Seconds since the first began."""
    seconds: float
    where: str = ""
    """MACHINE:PROCESS."""

    @property
    def machine(self) -> str:
        return self.where.rpartition(":")[0]


STATUS_COLOURS = {
    "reached": COLOURS[0],
    "exhausted": COLOURS[4],
    "dominated": GUIDE,
    "diverged": COLOURS[1],
    "failed": COLOURS[3],
}


def training_curves(curves: Sequence[Curve], goal: Goal) -> go.Figure:
    """Of the best trial of each batch size, from small (dark) to large (bright)."""
    figure = _by_batch_size(curves, safe(goal.metric))
    steps = [step for curve in curves for step in curve.steps]
    figure.add_traces(guide([min(steps), max(steps)], [goal.bound, goal.bound], "goal"))
    values = [value for curve in curves for value in curve.values]
    if min(values) > 0 and max(values) > 10 * min(values):
        figure.update_yaxes(**log10_axis([*values, goal.bound]))
    return figure


def distances(curves: Sequence[Curve]) -> go.Figure:
    """How far the weights are from where they began, against the logarithm of the step."""
    return _by_batch_size(curves, "Distance from the initial weights")


def _by_batch_size(curves: Sequence[Curve], y_title: str) -> go.Figure:
    figure = go.Figure()
    ordered = sorted(curves, key=lambda curve: curve.batch_size)
    for curve, colour in zip(ordered, shades(len(ordered)), strict=True):
        figure.add_scatter(
            x=curve.steps, y=curve.values, name=f"{curve.batch_size:,}", mode="lines",
            line={"color": colour, "width": 2},
            hovertemplate=f"<b>batch size {curve.batch_size:,}, trial {curve.trial}</b><br>"
            "step %{x:,}: %{y:.4g}<extra></extra>",
        )  # fmt: skip
    styled(figure, "Step", y_title)
    figure.update_layout(legend={"title": {"text": "batch size "}})
    figure.update_xaxes(**log10_axis(step for curve in curves for step in curve.steps))
    return figure


def schedules(curves: Sequence[Curve], recipes: Sequence[str]) -> go.Figure:
    """What each recipe's learning rate is multiplied with as training goes on."""
    figure = go.Figure()
    for curve in curves:
        number = recipes.index(curve.recipe)
        figure.add_scatter(
            x=curve.steps, y=curve.values, name=safe(curve.recipe), mode="lines",
            line={"color": COLOURS[number % len(COLOURS)], "width": 2,
                  "dash": ("solid", "dash", "dot", "dashdot")[number % 4]},
            hovertemplate=f"<b>{safe(curve.recipe)}, trial {curve.trial}</b><br>"
            "step %{x:,}: %{y:.3g}<extra></extra>",
        )  # fmt: skip
    styled(figure, "Step", "Share of the learning rate", height=360)
    return figure


def timeline(spans: Sequence[Span]) -> go.Figure:
    """Each trial as a bar, coloured by how it ended; machine by machine, a line for each that ran
    at the same time."""
    figure = go.Figure()
    lines, machines = _lines(spans)
    for status in dict.fromkeys(span.status for span in spans):
        mine = [
            (span, line) for span, line in zip(spans, lines, strict=True) if span.status == status
        ]
        figure.add_bar(
            base=[span.started for span, _ in mine],
            x=[span.seconds for span, _ in mine],
            y=[line for _, line in mine],
            orientation="h", name=status, width=0.9,
            marker={"color": STATUS_COLOURS.get(status, GUIDE), "line": {"width": 0}},
            hovertext=[
                f"<b>{safe(span.study)}, trial {span.trial}</b><br>"
                f"{status} after {span.seconds:.3g} s<br>{safe(span.where)}"
                for span, _ in mine
            ],
            hoverinfo="text",
        )  # fmt: skip
    count = max(lines, default=0) + 1
    styled(figure, "Seconds since the first trial", "", height=140 + 26 * min(count, 16))
    figure.update_layout(barmode="overlay", bargap=0)
    figure.update_yaxes(
        range=[count - 0.4, -0.6], tickvals=[*machines.values()], ticktext=[*map(safe, machines)]
    )
    return figure


def _lines(spans: Sequence[Span]) -> tuple[list[int], dict[str, int]]:
    """The first line of its machine that is free when a trial starts, for spans in order of start;
    and the first line of each machine."""
    free: dict[str, list[float]] = {}
    within = []
    for span in spans:
        mine = free.setdefault(span.machine, [])
        line = next((n for n, until in enumerate(mine) if until <= span.started), len(mine))
        if line == len(mine):
            mine.append(0.0)
        mine[line] = span.started + span.seconds
        within.append(line)
    firsts, total = {}, 0
    for machine in sorted(free):
        firsts[machine] = total
        total += len(free[machine])
    return [firsts[s.machine] + line for s, line in zip(spans, within, strict=True)], firsts
