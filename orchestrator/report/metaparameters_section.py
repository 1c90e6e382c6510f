"""The best values of metaparameters, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis import Tuned
from orchestrator.analysis.tuned import EFFECTIVE
from orchestrator.report.content import Panel
from orchestrator.report.figures import metaparameters
from orchestrator.report.sections import Show
from orchestrator.report.tables import short
from orchestrator.report.trials import Options

MOST_PANELS = 24
"""The most metaparameters in the figure."""


def best_values(panel: Panel, show: Show) -> str:
    """Draws one figure with a panel for each metaparameter, and lists the powers of the batch
    size."""
    found = _by_name(panel)
    if not found:
        return ""
    few = dict([*found.items()][:MOST_PANELS])
    left_out = len(found) - len(few)
    shown = show(
        metaparameters.best_values(few, panel.recipes),
        "Best metaparameters against batch size",
        "The values of the winner at each batch size."
        + (f" {left_out:,} more metaparameters are not drawn." if left_out else ""),
        "Dashed: the linear rule, which multiplies the learning rate by the batch size. Dotted: "
        "the square-root rule. Both go through the first point of the first recipe. An effective "
        "learning rate is the learning rate divided by 1 - momentum."
        if any(curve.is_rate for curves in few.values() for curve in curves)
        else "",
    )
    items = "".join(
        f"<li>{escape(line)}</li>"
        for name, curves in found.items()
        if (line := _powers(panel, name, curves))
    )
    if not items:
        return shown
    return (
        f'{shown}<ul>{items}</ul><p class="lead">B is the batch size. The power 1 is the linear '
        f"rule, 0.5 the square-root rule, 0 means that the best value does not depend on the batch "
        f"size.</p>"
    )


def _by_name(panel: Panel) -> dict[str, list[Tuned]]:
    found = panel.tuned
    return {
        name: [curve for curve in found if curve.name == name]
        for name in dict.fromkeys(curve.name for curve in found)
    }


def _powers(panel: Panel, name: str, curves: Sequence[Tuned]) -> str:
    """Returns the powers of a metaparameter that was searched in a range; options follow no
    power."""
    told: list[str] = []
    for curve in curves:
        if _searched_as(name) in panel.fixed.get(curve.recipe, ()):
            continue
        if curve.exponent is not None and curve.exponent_interval is not None:
            low, high = curve.exponent_interval
            first = "90 % interval: " * (not told)
            told.append(
                f"B^{curve.exponent:.2f} for {curve.recipe} ({first}{low:.2f} to {high:.2f})"
            )
    zeros = [f"{curve.recipe} ({curve.zeros} batch sizes)" for curve in curves if curve.zeros]
    falls = any(curve.exponent is not None and curve.exponent < 0 for curve in curves)
    how = "follows" if falls else "grows like"
    said = f"Best {_spoken(name)} {how} {', '.join(told)}." if told else ""
    if zeros:
        said += f" Best {_spoken(name)} is 0, which is not drawn, for {', '.join(zeros)}."
    return said.strip()


def _searched_as(name: str) -> str:
    return "learning_rate" if name == EFFECTIVE else name.removeprefix("1 - ")


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def metaparameters_found(panel: Panel) -> str:
    """Says the power of the first metaparameter that has one."""
    for name, curves in _by_name(panel).items():
        for curve in curves:
            if said := _powers(panel, name, [curve]):
                return said.rstrip(".")
    return "The best values at each batch size"


def options(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            metaparameters.options(found.points, found.name, panel.goal),
            f"{recipe}: what {found.name} changes",
            _told(found),
            "Left: of the trials with each value, the fewest steps to the goal. Right: the best "
            "value that any of them reached. A point is missing if no trial reached the goal, or "
            "if trials with that value were stopped early, which would tell too little.",
        )
        for recipe, several in panel.options.items()
        for found in several
        if any(point.steps or point.best is not None for point in found.points)
    )


def _told(found: Options) -> str:
    size = max(point.batch_size for point in found.points if point.steps or point.best is not None)
    said = [
        f"{short(point.option)}" + (f" in {point.steps:,} steps" if point.steps else "")
        + ("" if point.best is None else f", best {point.best:.4g}")
        for point in found.points
        if point.batch_size == size
    ]  # fmt: skip
    return f"At batch size {size:,}: {'; '.join(said)}."
