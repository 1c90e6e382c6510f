"""The fold of the run's course: how trials ended, and how many were trained at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from orchestrator.analysis import in_time
from orchestrator.report.content import grouped
from orchestrator.report.sections import Show, fold
from orchestrator.report.style import COLOURS, GUIDE, safe, styled
from orchestrator.results import Run

MOMENTS = 200
"""The run is divided into so many equal parts."""

STATUS_COLOURS = {
    "reached": COLOURS[0],
    "exhausted": COLOURS[4],
    "dominated": GUIDE,
    "paused": COLOURS[2],
    "diverged": COLOURS[1],
    "failed": COLOURS[3],
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """The time in which a trial, or its last part, was trained."""

    status: str
    started: float
    """Seconds since the first trial began."""
    seconds: float

    @property
    def ended(self) -> float:
        return self.started + self.seconds


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the trials of a run ended, and when they were trained."""

    statuses: Mapping[str, int]
    """(ending, number of trials), the most frequent first."""
    spans: Sequence[Span]
    """The spans of those trials and repeats whose times are known."""

    @property
    def seconds(self) -> float | None:
        """Seconds from the start of the first trial to the end of the last; None if unknown."""
        return max((span.ended for span in self.spans), default=None)


def course_of(run: Run) -> Course:
    keys = [study.key for study in run.studies()]
    trials, repeats = (
        [row for table in run.in_parallel(of.trials, keys) for row in table.to_pylist()]
        for of in (run, run.repeats)
    )
    statuses = Counter(row["status"] for row in trials)
    return Course(statuses=dict(statuses.most_common()), spans=_spans([*trials, *repeats]))


def _spans(rows: Sequence[dict[str, Any]]) -> list[Span]:
    """Returns the spans of trials. Trials that were trained together are drawn one after another,
    each as long as its share."""
    timed = [row for row in rows if row["started"] is not None and row["seconds"] is not None]
    timed.sort(key=lambda row: row["started"])
    spans, ends = list[Span](), dict[str, float]()
    for row in timed:
        started, where = row["started"] - timed[0]["started"], row.get("where") or ""
        # Those since `started`.
        seconds = row["seconds"] + row["evaluation_seconds"] - row["resumed_seconds"]
        if (row["width"] or 1) > 1:
            started = max(started, ends.get(where, started))
            ends[where] = started + seconds
        spans.append(Span(status=row["status"], started=started, seconds=seconds))
    return spans


def course(spans: Sequence[Span], show: Show) -> str:
    """Shows how many slots were at work."""
    if not spans:
        return ""
    whole = max(span.ended for span in spans)
    at_once = sum(span.seconds for span in spans) / (whole or 1.0)
    figure = show(
        slots_at_work(spans),
        "Slots at work",
        f"{len(spans):,} trials and repeats; on average {at_once:.3g} slots were at work.",
        f"The height is the number of slots that trained or evaluated, as a mean over each "
        f"{MOMENTS}th of the run; colours show how their trials ended. A gap below the number of "
        f"slots is time in which some had nothing to train or prepared a training, or the earlier "
        f"part of a trial that was set aside and went on later, of which only the last part is "
        f"drawn. Trials that were trained together in one model share one slot.",
    )
    finding = f"{len(spans):,} trials and repeats in {in_time(whole)}"
    return fold("course", "How the run went", finding, figure)


def slots_at_work(spans: Sequence[Span]) -> go.Figure:
    """Draws how many slots were at work in each part of the run, stacked by how their trials
    ended."""
    moments = np.linspace(0, max(span.ended for span in spans) or 1.0, MOMENTS + 1)
    by_status = grouped(spans, lambda span: span.status)
    figure = go.Figure()
    for status in sorted(by_status, key=[*STATUS_COLOURS, *by_status].index):
        # Up to a moment, a span has worked from its start to its end, if that is earlier.
        starts, ends = np.array([(span.started, span.ended) for span in by_status[status]]).T
        worked = np.diff(_since(starts, moments) - _since(ends, moments))
        figure.add_scatter(
            x=((moments[1:] + moments[:-1]) / 2).round(3).tolist(),
            y=np.abs(worked / np.diff(moments)).round(3).tolist(),
            name=safe(status), mode="lines", stackgroup="slots",
            line={"width": 0, "shape": "hvh"}, fillcolor=STATUS_COLOURS.get(status, GUIDE),
            hovertemplate="%{y:.3g} " + safe(status) + "<extra></extra>",
        )  # fmt: skip
    styled(figure, "Seconds since the first trial", "Slots", height=320)
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(rangemode="tozero")
    return figure


def _since(times: NDArray[np.float64], moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns, for each moment, the sum of the seconds that passed since each of the earlier
    times."""
    times = np.sort(times)
    earlier = np.searchsorted(times, moments)
    sums: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(times)])
    return moments * earlier - sums[earlier]
