"""The fold of metaparameters: their best values against batch size, and the results of options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.analysis.tuned import EFFECTIVE, OptionPoint, Tuned, by_option, tuned
from orchestrator.records import Choice, Goal, Range, Study
from orchestrator.report.content import Panel, grouped
from orchestrator.report.sections import Show, bullets, lead
from orchestrator.report.style import Drawing, Trace, guide, mark, of_size, safe, value_axis
from orchestrator.report.trials import Tables

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
        "The values of the winner at each batch size."
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
    zeros = [
        f"{curve.recipe} ({curve.zeros} batch size{'s' * (curve.zeros > 1)})"
        for curve in curves
        if curve.zeros
    ]
    falls = any(curve.exponent is not None and curve.exponent.value < 0 for curve in curves)
    how = "follows" if falls else "grows like"
    spoken = name.replace("_", " ")
    said = f"Best {spoken} {how} {', '.join(intervals)}." if intervals else ""
    if zeros:
        said += f" Best {spoken} is 0, which is not drawn, for {', '.join(zeros)}."
    return said.strip()


def finding(panel: Panel) -> str:
    """Says the power of the first metaparameter that has one."""
    for name, curves in _by_name(panel).items():
        for curve in curves:
            if said := _powers(panel, name, [curve]):
                return said.rstrip(".")
    return "The best values at each batch size"


def options_of(
    studies: Sequence[Study], tables: Tables, goal: Goal
) -> dict[str, list[OptionPoint]]:
    """Maps each metaparameter of one recipe that is a choice to the results of its options."""
    return {
        name: [
            point for study in studies for point in by_option(study, tables[study.key], name, goal)
        ]
        for name, entry in studies[0].space.items()
        if isinstance(entry, Choice) and 1 < len(entry.options) < 8
    }


def fixed_in(studies: Sequence[Study]) -> set[str]:
    spaces = [study.space for study in studies]
    return {name for s in spaces for name, entry in s.items() if not isinstance(entry, Range)}


def options(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            _options(points, name, panel.goal),
            f"{recipe}: what {name} changes",
            "",
            "Left: of the trials with each value, the fewest steps to the goal. Right: the best "
            "value that any of them reached. A point is missing if no trial reached the goal, or "
            "if trials with that value were stopped early, which would tell too little.",
        )
        for recipe, several in panel.options.items()
        for name, points in several.items()
        if any(point.steps or point.best is not None for point in points)
    )


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


def _options(points: Sequence[OptionPoint], name: str, goal: Goal) -> Drawing:
    """For each option, the fewest steps to goal and, on the right, the best value reached."""
    titles = ["steps to goal", f"best {safe(goal.metric)}"]
    figure = Drawing(titles, gaps=(0.12, 0))
    for number, (option, mine) in enumerate(grouped(points, lambda one: one.option).items()):
        exactly = f"{option:.6g}" if isinstance(option, float) else safe(option)
        for panel, what in enumerate(("steps", "best")):
            there = [point for point in mine if getattr(point, what) is not None]
            figure.add({
                "mode": "lines+markers", "legendgroup": str(number),
                "x": [point.batch_size for point in there],
                "y": [getattr(point, what) for point in there],
                "name": f"{safe(name)} = {exactly}", **mark(number),
            }, panel=panel)  # fmt: skip
    figure.legend_once()
    figure.styled("Batch size", "", margin={"t": 60}, legend={"y": 1.1})
    figure.log2("x", (point.batch_size for point in points))
    figure.log2("y", (p.steps for p in points if p.steps is not None), panel=0)
    values = [point.best for point in points if point.best is not None]
    figure.y_axes(1, **value_axis(values, goal))
    return figure
