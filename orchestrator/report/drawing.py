"""Figures in plotly's words, as plain dictionaries. plotly's own objects check every value, which
takes as long as half of a page, so they are made for notebooks and images only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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

    def style(self, **look: Any) -> None:
        _update(self.layout, look)

    def axes(self, letter: str, panel: int | None = None) -> Iterator[dict[str, Any]]:
        """The horizontal ("x") or vertical ("y") axes of all panels, or that of one."""
        for name, axis in self.layout.items():
            of_panel = panel is None or name == f"{letter}axis{panel + 1 if panel else ''}"
            if name.startswith(f"{letter}axis") and of_panel:
                yield axis

    def x_axes(self, panel: int | None = None, **look: Any) -> None:
        for axis in self.axes("x", panel):
            _update(axis, look)

    def y_axes(self, panel: int | None = None, **look: Any) -> None:
        for axis in self.axes("y", panel):
            _update(axis, look)

    def to_json(self) -> str:
        """What is no number becomes a gap."""
        figure = {"data": self.data, "layout": self.layout}
        try:
            return json.dumps(figure, allow_nan=False, separators=(",", ":"))
        except ValueError:
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
