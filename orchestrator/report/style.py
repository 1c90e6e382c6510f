"""Figures in plotly's words, as plain dictionaries, and the style of all: colours, shapes, axes."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from plotly.colors import sample_colorscale

from orchestrator.analysis.estimates import Estimate
from orchestrator.records import Goal
from orchestrator.results.purpose import finite

if TYPE_CHECKING:
    import plotly.graph_objects as go

Trace = dict[str, Any]


class Drawing:
    """One panel, or several in rows; they are numbered from 0 on, row by row."""

    def __init__(
        self,
        titles: Sequence[str] = ("",),
        *,
        columns: int = 0,
        gaps: tuple[float, float] = (0.0, 0.0),
        one_y: bool = False,
    ) -> None:
        """`titles`: of the panels. `columns`: panels in a row; 0: all of them. `gaps`: between
        columns and between rows, as shares of the figure. `one_y`: all panels have the vertical
        axis of the first."""
        self.data: list[Trace] = []
        self.layout: dict[str, Any] = {}
        columns = columns or len(titles)
        rows = math.ceil(len(titles) / columns)
        width, height = (
            (1 - gap * (count - 1)) / count
            for gap, count in zip(gaps, (columns, rows), strict=True)
        )
        for panel, title in enumerate(titles):
            row, column = divmod(panel, columns)
            left, top = column * (width + gaps[0]), 1 - row * (height + gaps[1])
            x, y = _names(panel)
            self.layout[f"xaxis{x[1:]}"] = {"anchor": y, "domain": [left, left + width]}
            bottom = max(top - height, 0.0)  # rounding may lead below
            self.layout[f"yaxis{y[1:]}"] = {"anchor": x, "domain": [bottom, top]}
            if one_y and panel:
                self.layout[f"yaxis{y[1:]}"] |= {"matches": "y", "showticklabels": False}
            if title:
                self.layout.setdefault("annotations", []).append({
                    "text": title, "x": left + width / 2, "y": top, "xref": "paper",
                    "yref": "paper", "xanchor": "center", "yanchor": "bottom", "showarrow": False,
                })  # fmt: skip

    def add(self, *traces: Trace, panel: int = 0) -> None:
        x, y = _names(panel)
        self.data += [{"type": "scatter", "xaxis": x, "yaxis": y, **trace} for trace in traces]

    def line(
        self,
        name: str,
        points: Iterable[tuple[Any, Any, str]],
        look: Mapping[str, Any],
        mode: str = "lines+markers",
        panel: int = 0,
        **own: Any,
    ) -> None:
        """Adds a line with a marker, if `mode` has any, at each (x, y, text on hovering)."""
        points = list(points)
        x, y, text = ([point[position] for point in points] for position in range(3))
        trace = {"name": safe(name), "mode": mode, "hovertext": text, "hoverinfo": "text"}
        self.add({"x": x, "y": y, **trace, **look, **own}, panel=panel)

    def style(self, **look: Any) -> None:
        _update(self.layout, look)

    def styled(self, x_title: str, y_title: str, *, height: int = 460, **look: Any) -> None:
        """The style of all figures, titles of the axes, and what else `look` says."""
        self.style(template=_TEMPLATE, height=height, **look)
        if x_title:
            self.x_axes(title={"text": x_title})
        if y_title:
            self.y_axes(title={"text": y_title})

    def log2(
        self, letter: str, values: Iterable[float], most: int = 9, panel: int | None = None
    ) -> None:
        """Gives axes ticks at powers of two, at most about `most` of them."""
        self._look(letter, panel, log2_axis(values, most))

    def log10(
        self, letter: str, values: Iterable[float], most: int = 8, panel: int | None = None
    ) -> None:
        """Gives axes ticks at 1, 2 and 5 of each decade, or only at powers of ten."""
        self._look(letter, panel, log10_axis(values, most))

    def _look(self, letter: str, panel: int | None, look: Mapping[str, Any]) -> None:
        for axis in self.axes(letter, panel):
            _update(axis, look)

    def legend_once(self) -> None:
        """Keeps one legend entry for each group of traces: the entry of the first trace that has
        points, because a trace without points shows none."""
        first = {trace["legendgroup"]: trace for trace in reversed(self.data) if trace["x"]}
        for trace in self.data:
            trace["showlegend"] = first.get(trace["legendgroup"]) is trace

    def axes(self, letter: str, panel: int | None = None) -> Iterator[dict[str, Any]]:
        """The horizontal ("x") or vertical ("y") axes of all panels, or that of one."""
        for name, axis in self.layout.items():
            of_panel = panel is None or name == f"{letter}axis{panel + 1 if panel else ''}"
            if name.startswith(f"{letter}axis") and of_panel:
                yield axis

    def x_axes(self, panel: int | None = None, **look: Any) -> None:
        self._look("x", panel, look)

    def y_axes(self, panel: int | None = None, **look: Any) -> None:
        self._look("y", panel, look)

    def to_json(self) -> str:
        """What is no number becomes a gap."""
        figure = {"data": self.data, "layout": self.layout}
        return json.dumps(finite(figure), separators=(",", ":"))

    def as_plotly(self) -> go.Figure:
        """plotly's own figure, which refuses what it does not know."""
        import plotly.graph_objects as go

        return go.Figure(self.data, self.layout)


def _names(panel: int) -> tuple[str, str]:
    number = panel + 1 if panel else ""
    return f"x{number}", f"y{number}"


def _update(of: dict[str, Any], look: Mapping[str, Any]) -> None:
    """Sets what `look` says, and leaves the rest of what it has dictionaries for."""
    for key, value in look.items():
        if isinstance(value, Mapping):
            _update(of.setdefault(key, {}), value)
        else:
            of[key] = value


Item = TypeVar("Item")

# Okabe and Ito's palette tells colours apart for every kind of colour vision; shapes do without.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down"]
GUIDE = "#8A8A8A"
"""The colour of lines for comparison; it is visible on white and on black."""

MOST_CURVES = 40
"""The most batch sizes in one figure; more shades can't be told apart."""


def mark(number: int, colour: str = "") -> dict[str, Any]:
    """Line and marker of the n-th of several curves; where colours come again, lines are broken and
    markers hollow, and after that, markers are of another shape."""
    turn, place = divmod(number, len(COLOURS))
    again, hollow = divmod(turn, 2)
    colour = colour or COLOURS[place]
    symbol = SYMBOLS[(place + again) % len(SYMBOLS)] + "-open" * hollow
    return {
        "line": {"color": colour, "width": 2.5, "dash": "longdash" if hollow else "solid"},
        "marker": {"symbol": symbol, "size": 10, "color": colour},
    }


@cache
def shades(count: int) -> Sequence[str]:
    """Colours in an order that is visible without a legend."""
    return list(sample_colorscale("Viridis", [n / max(count - 1, 1) * 0.92 for n in range(count)]))


def shaded(sizes: Iterable[int]) -> list[tuple[int, str]]:
    """Batch sizes, or some of too many, with their colours from small (dark) to large (bright)."""
    ordered = evenly(sorted({*sizes}), MOST_CURVES)
    return [*zip(ordered, shades(len(ordered)), strict=True)]


def whiskers(estimates: Sequence[Estimate | None], **look: object) -> dict[str, object]:
    """Intervals about values; one without an end is drawn up to a factor of 1000."""
    up, down = [], []
    for one in (estimate or Estimate(value=0.0) for estimate in estimates):
        up.append(0.0 if one.high is None else min(one.high, 1000 * one.value) - one.value)
        down.append(0.0 if one.low is None else one.value - max(one.low, one.value / 1000))
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}


def guide(
    x: Sequence[float | None],
    y: Sequence[float | None],
    name: str,
    dash: str = "dash",
    width: float = 1.5,
    colour: str = GUIDE,
) -> Trace:
    """A line on which nothing was measured."""
    line = {"color": colour, "dash": dash, "width": width}
    return {"x": x, "y": y, "name": name, "mode": "lines", "line": line, "hoverinfo": "skip"}


_AXIS = {
    "gridcolor": "rgba(128,128,128,0.25)", "zeroline": False,
    # Room for labels, however long.
    "automargin": True, "title": {"standoff": 10},
}  # fmt: skip
_TEMPLATE = {
    "layout": {
        "font": {"family": "system-ui, sans-serif", "size": 14},
        "margin": {"l": 70, "r": 20, "t": 20, "b": 60},
        # The page shows through, be it light or dark.
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "tracegroupgap": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GUIDE, "activecolor": COLOURS[0]},
        "hoverlabel": {"align": "left"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
}
"""Smaller than plotly's own template, and quicker than styling each of a dozen axes."""


def log2_axis(values: Iterable[float], most: int = 9) -> dict[str, Any]:
    values = [value for value in values if value > 0] or [1.0]
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    if first == last:  # a single power of two has room on both sides
        first, last = first - 1, last + 1
    stride = max(1, math.ceil((last - first) / most))
    ticks = [2.0**power for power in range(first, last + 1, stride)]
    margin = 0.04 * max(last - first, 1)
    edges = [math.log10(2) * (first - margin), math.log10(2) * (last + margin)]
    texts = [f"{tick:,.0f}" if tick >= 1 else f"1/{1 / tick:,.0f}" for tick in ticks]
    return {"type": "log", "tickvals": ticks, "ticktext": texts, "range": edges}


def log10_axis(values: Iterable[float], most: int = 8) -> dict[str, Any]:
    values = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = 0.04 * max(high - low, 0.5)
    edges = [low - margin, high + margin]
    within = range(math.ceil(edges[0]), math.floor(edges[1]) + 1)
    if 3 * (high - low) < most:
        powers = range(within.start - 1, within.stop)
        ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    else:
        ticks = [float(f"1e{power}") for power in within[:: math.ceil(len(within) / most)]]
    texts = [f"{tick:,g}" for tick in ticks]
    return {"type": "log", "tickvals": ticks, "ticktext": texts, "range": edges}


def value_axis(values: Sequence[float], goal: Goal) -> dict[str, Any]:
    """The axis of a goal's metric: errors and losses fall towards 0 and get a logarithmic axis,
    accuracies grow towards 1 and get a linear one."""
    known = [value for value in values if math.isfinite(value)]
    if goal.direction == ">" or not known or min(known) <= 0:
        return {"type": "linear"}
    return log10_axis(known)


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many items, from the first to the last at even distances."""
    if len(items) <= most:
        return [*items]
    return [items[round(n * (len(items) - 1) / max(most - 1, 1))] for n in range(most)]


def rounded(number: float, digits: int = 4) -> float:
    """Rounds to so many significant digits, as exactly as the number can be drawn."""
    return float(f"{number:.{digits}g}")


def of_size(batch_size: int, name: str = "") -> str:
    """The first line of the text that appears on hovering: a name and a batch size."""
    return f"<b>{safe(name)}{', ' * bool(name)}batch size {batch_size:,}</b><br>"


def safe(text: object) -> str:
    """Escapes names, because plotly interprets tags in texts, but would show how quotes are."""
    return html.escape(str(text), quote=False)
