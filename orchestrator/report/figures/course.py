"""Figures over the time of a run: what the winners measured, and when each trial ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

import plotly.graph_objects as go

from orchestrator.records import Goal
from orchestrator.report.figures.style import (
    COLOURS,
    GUIDE,
    MOST_CURVES,
    evenly,
    guide,
    log10_axis,
    safe,
    shades,
    styled,
    value_axis,
)

MOST_BARS = 4000
"""The most bars in the timeline; each takes about 150 bytes, and a line has several per pixel."""

MOST_LINES = 400
"""The most trials at the same time in the timeline; each takes one pixel of height."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The measurements of one trial in one metric."""

    recipe: str
    batch_size: int
    trial: int
    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The time in which a trial was trained."""

    study: str
    trial: int
    status: str
    started: float
    """Seconds since the first trial began."""
    seconds: float
    where: str = ""
    """The slot as MACHINE:PROCESS."""

    @property
    def machine(self) -> str:
        return self.where.rpartition(":")[0]


STATUS_COLOURS = {
    "reached": COLOURS[0],
    "exhausted": COLOURS[4],
    "dominated": GUIDE,
    "paused": COLOURS[2],
    "diverged": COLOURS[1],
    "failed": COLOURS[3],
}


def training_curves(curves: Sequence[Curve], goal: Goal, losers: Sequence[Curve] = ()) -> go.Figure:
    """Draws the best trial of each batch size, from small (dark) to large (bright), and behind
    them, faint, trials that did not win."""
    figure = _by_batch_size(curves, safe(goal.metric), losers)
    steps = [step for curve in curves for step in curve.steps]
    figure.add_traces(guide([min(steps), max(steps)], [goal.bound, goal.bound], "goal"))
    values = [value for curve in (*curves, *losers) for value in curve.values]
    figure.update_yaxes(**value_axis([*values, goal.bound], goal))
    return figure


def distances(curves: Sequence[Curve]) -> go.Figure:
    """Draws how far the weights are from their initial values, against the logarithm of the
    step."""
    return _by_batch_size(curves, "Distance from the initial weights")


def _by_batch_size(
    curves: Sequence[Curve], y_title: str, losers: Sequence[Curve] = ()
) -> go.Figure:
    figure = go.Figure()
    ordered = evenly(sorted(curves, key=lambda curve: curve.batch_size), MOST_CURVES)
    looks = [*zip(ordered, shades(len(ordered)), strict=True)]
    for curve, colour in looks:
        figure.add_scatter(**_faint(losers, curve.batch_size), line={"color": colour, "width": 1})
    for curve, colour in looks:
        figure.add_scatter(
            x=curve.steps, y=curve.values, name=f"{curve.batch_size:,}", mode="lines",
            legendgroup=f"{curve.batch_size}", line={"color": colour, "width": 2},
            hovertemplate=f"<b>batch size {curve.batch_size:,}, trial {curve.trial}</b><br>"
            "step %{x:,}: %{y:.4g}<extra></extra>",
        )  # fmt: skip
    styled(figure, "Step", y_title)
    figure.update_layout(legend={"title": {"text": "batch size "}})
    seen = [step for curve in (*curves, *losers) for step in curve.steps]
    figure.update_xaxes(**log10_axis(seen))
    return figure


def _faint(losers: Sequence[Curve], batch_size: int) -> dict[str, Any]:
    """Joins all trials that did not win at one batch size, one after the other with gaps between
    them."""
    mine = [curve for curve in losers if curve.batch_size == batch_size]
    return {
        "x": [step for curve in mine for step in (*curve.steps, None)],
        "y": [value for curve in mine for value in (*curve.values, None)],
        "mode": "lines", "opacity": 0.3, "showlegend": False, "hoverinfo": "skip",
        "legendgroup": f"{batch_size}", "name": f"{batch_size:,}, other trials",
    }  # fmt: skip


def schedules(curves: Sequence[Curve], recipes: Sequence[str]) -> go.Figure:
    """Draws the factor on each recipe's learning rate during training."""
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
    """Draws each trial as a bar, coloured by how it ended. Each machine has a line for each trial
    that ran at the same time. If there are too many bars, neighbours on a line share a bar, whose
    colour shows how the trials ended that took most of its time."""
    figure = go.Figure()
    lines, machines = _lines(spans)
    bars = _bars(spans, lines)
    for status in dict.fromkeys(bar.status for bar in bars):
        mine = [bar for bar in bars if bar.status == status]
        figure.add_bar(
            base=[bar.started for bar in mine],
            x=[bar.seconds for bar in mine],
            y=[bar.line for bar in mine],
            orientation="h", name=status, width=0.9,
            marker={"color": STATUS_COLOURS.get(status, GUIDE), "line": {"width": 0}},
            hovertext=[bar.text for bar in mine],
            hoverinfo="text",
        )  # fmt: skip
    count = max((bar.line for bar in bars), default=0) + 1
    styled(figure, "Seconds since the first trial", "", height=140 + 26 * min(count, 16))
    figure.update_layout(barmode="overlay", bargap=0)
    shown = {name: line for name, line in machines.items() if line < count}
    figure.update_yaxes(
        range=[count - 0.4, -0.6], tickvals=[*shown.values()], ticktext=[*map(safe, shown)]
    )
    return figure


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """Trials that ran one after the other."""

    line: int
    spans: Sequence[Span]

    @property
    def started(self) -> float:
        return self.spans[0].started

    @property
    def seconds(self) -> float:
        if len(self.spans) == 1:
            return self.spans[0].seconds
        return round(max(span.started + span.seconds for span in self.spans) - self.started, 3)

    @cached_property
    def status(self) -> str:
        seconds: dict[str, float] = {}
        for span in self.spans:
            seconds[span.status] = seconds.get(span.status, 0) + span.seconds
        return max(seconds, key=lambda status: seconds[status])

    @property
    def text(self) -> str:
        first = self.spans[0]
        if len(self.spans) == 1:
            said = f"{safe(first.study)}, trial {first.trial}</b><br>"
            said += f"{first.status} after {first.seconds:.3g} s"
        else:
            ended = Counter(span.status for span in self.spans).most_common()
            said = f"{len(self.spans):,} trials in {self.seconds:.3g} s</b><br>"
            said += ", ".join(f"{count:,} {status}" for status, count in ended)
        return f"<b>{said}<br>{safe(first.where)}"


def _bars(spans: Sequence[Span], lines: Sequence[int]) -> list[_Bar]:
    """Returns a bar for each trial. If there are too many, only the first lines are kept, and
    trials of a line that began in the same interval share a bar; the interval is long enough that
    the bars are few enough."""
    if len(spans) <= MOST_BARS:
        return [_Bar(line=line, spans=[span]) for span, line in zip(spans, lines, strict=True)]
    drawn = [(span, line) for span, line in zip(spans, lines, strict=True) if line < MOST_LINES]
    last = max(span.started for span, _ in drawn)
    moments = MOST_BARS // (1 + max(line for _, line in drawn))
    together: dict[tuple[int, int], list[Span]] = {}
    for span, line in drawn:
        moment = math.floor(span.started / last * (moments - 1)) if last else 0
        together.setdefault((line, moment), []).append(span)
    return [_Bar(line=line, spans=several) for (line, _), several in together.items()]


def _lines(spans: Sequence[Span]) -> tuple[list[int], dict[str, int]]:
    """Returns, for spans in order of start, the first line of its machine that is free when the
    trial starts; also returns the first line of each machine."""
    counts: dict[str, int] = {}
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    within = []
    for span in spans:
        name = span.machine
        ends, lines = busy.setdefault(name, []), free.setdefault(name, [])
        while ends and ends[0][0] <= span.started:
            heappush(lines, heappop(ends)[1])
        if not lines:
            counts[name] = counts.get(name, 0) + 1
        line = heappop(lines) if lines else counts[name] - 1
        heappush(ends, (span.started + span.seconds, line))
        within.append(line)
    firsts, total = {}, 0
    for machine in sorted(counts):
        firsts[machine] = total
        total += counts[machine]
    return [firsts[s.machine] + line for s, line in zip(spans, within, strict=True)], firsts
