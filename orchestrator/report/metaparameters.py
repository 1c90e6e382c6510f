"""The fold of metaparameters: their best values against batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.tuned import EFFECTIVE, Tuned, tuned
from orchestrator.records import Range, Study, grouped
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show, bullets, lead
from orchestrator.report.style import Drawing, Trace, guide, mark, of_size, safe

MOST_PANELS = 24
"""The most metaparameters in the figure."""

RULES = ((1.0, "linear rule", "dash"), (0.5, "square-root rule", "dot"))

POWERS = (
    "B is the batch size. The power 1 is the linear rule, 0.5 the square-root rule, 0 means that "
    "the best value does not depend on the batch size."
)

PANEL_HEIGHT = 250
"""Height of the panel of each metaparameter, in pixels."""


def best_values(panel: Panel, show: Show) -> str:
    """A figure with a panel for each metaparameter, and the powers of the batch size."""
    found = _by_name(panel)
    if not found:
        return ""
    few = dict([*found.items()][:MOST_PANELS])
    left_out = len(found) - len(few)
    shown = show(
        _best_values(few, panel.recipes),
        "Best metaparameters against batch size",
        "The values of the trial that the answer at each batch size is of."
        + (f" {left_out:,} more metaparameters are not drawn." if left_out else ""),
        "Dashed: the linear rule, which multiplies the learning rate by the batch size. Dotted: "
        "the square-root rule. Both go through the first point of the first recipe. An effective "
        "learning rate is the learning rate divided by 1 - momentum."
        if any(curve.is_rate for curves in few.values() for curve in curves)
        else "",
    )
    powers = bullets([*filter(None, (_powers(panel, *one) for one in found.items()))])
    return shown + powers + (powers and lead(POWERS))


def _by_name(panel: Panel) -> dict[str, list[Tuned]]:
    return grouped(tuned(panel.rows), lambda curve: curve.name)


def _powers(panel: Panel, name: str, curves: Sequence[Tuned]) -> str:
    """The powers of a metaparameter that was searched in a range; options follow no power."""
    searched_as = "learning_rate" if name == EFFECTIVE else name.removeprefix("1 - ")
    intervals: list[str] = []
    for curve in curves:
        if searched_as in panel.fixed.get(curve.recipe, ()):
            continue
        if curve.exponent is not None:
            low, high = curve.exponent.ends
            first = "90 % interval: " * (not intervals)
            intervals.append(
                f"B^{curve.exponent.value:z.2f} for {curve.recipe} "
                f"({first}{low:z.2f} to {high:z.2f})"
            )
    falls = any(curve.exponent is not None and curve.exponent.value < 0 for curve in curves)
    how = "on average follows" if falls else "on average grows like"
    spoken = name.replace("_", " ")
    return f"Best {spoken} {how} {', '.join(intervals)}." if intervals else ""


def finding(panel: Panel) -> str:
    """Says the power of the first metaparameter that has one."""
    for name, curves in _by_name(panel).items():
        for curve in curves:
            if said := _powers(panel, name, [curve]):
                return said.rstrip(".")
    return "The best values at each batch size"


def fixed_in(studies: Sequence[Study]) -> set[str]:
    spaces = [study.space for study in studies]
    return {name for s in spaces for name, entry in s.items() if not isinstance(entry, Range)}


def _best_values(found: Mapping[str, Sequence[Tuned]], recipes: Sequence[str]) -> Drawing:
    """Draws the best values of metaparameters, with a panel for each and a line per recipe. For a
    learning rate it adds the linear and square-root rules through the first point of the first
    recipe. `recipes` are all recipes of the page, in their order."""
    across = min(3, len(found))
    down = math.ceil(len(found) / across)
    gaps = (0.24 / across, 0.32 / down)
    figure = Drawing([safe(name) for name in found], columns=across, gaps=gaps)
    height = 110 + PANEL_HEIGHT * down
    figure.styled(
        "",
        "",
        height=height,
        margin={"t": 80},
        legend={"y": 1 + 46 / (height - 140)},
        font={"size": 13},
    )
    for number, curves in enumerate(found.values()):
        figure.add(*_rules(curves[0]), panel=number)
        for one in curves:
            look = mark(recipes.index(one.recipe))
            look["line"]["width"], look["marker"]["size"] = 1.8, 7
            at = [
                (size, value, f"{of_size(size, one.recipe)}{safe(one.name)} {value:.4g}")
                for size, value in one.points
            ]
            group = f"recipe {one.recipe}"
            figure.line(one.recipe, at, look, panel=number, legendgroup=group)
        points = [point for curve in curves for point in curve.points]
        figure.log2("x", (size for size, _ in points), most=5, panel=number)
        figure.log10("y", [value for _, value in points], most=6, panel=number)
        if number >= len(found) - across:
            figure.x_axes(number, title={"text": "Batch size"})
    figure.legend_once()
    return figure


def _rules(first: Tuned) -> list[Trace]:
    return [
        {**guide(sizes, values, name, dash, 1.2), "legendgroup": name}
        for exponent, name, dash in (RULES if first.is_rate else ())
        for sizes, values in [zip(*first.rule(exponent), strict=True)]
    ]
