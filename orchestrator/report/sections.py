"""The parts of the page, as HTML. Whatever comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from orchestrator.analysis import Advice, Cost, Scaling, Tuned, in_words, sentence
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.records import Value
from orchestrator.report import figures
from orchestrator.report.content import Panel
from orchestrator.report.figures import Span
from orchestrator.results import FrontierRow

Show = Callable[[go.Figure, str, str, str], str]
"""Puts a figure on the page: the figure, its title, what is to be seen, how to read it."""


def answers(panels: Sequence[Panel]) -> str:
    """The page in words, then in numbers."""
    many = len(panels) > 1
    lists = [
        (f"<h3>{escape(panel.workload)}, until {escape(str(panel.goal))}</h3>" if many else "")
        + f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in _lines(panel))}</ul>"
        for panel in panels
    ]
    return f"""
<section aria-labelledby="answer"><h2 id="answer">The answer</h2>
{"".join(lists)}
{_table_of_scalings([scaling for panel in panels for scaling in panel.scalings])}
</section>
"""


def _lines(panel: Panel) -> list[str]:
    lines = [sentence(scaling) for scaling in panel.scalings]
    if panel.advice is not None:
        lines.append(_recommendation(panel.advice))
    if any(row.censored for row in panel.rows):
        lines.append(
            "Some answers are censored: trials were ended at other goals, and could have come to "
            "this one sooner than any that did."
        )
    return lines


def _recommendation(advice: Advice) -> str:
    def named(cost: Cost) -> str:
        return (
            f"{cost.recipe} at batch size {cost.batch_size:,} ({cost.steps:,} steps, "
            f"{cost.examples:,} examples)"
        )

    return (
        f"Recommended: fastest, {named(advice.fastest)}; cheapest, {named(advice.cheapest)}; "
        f"balanced, {named(advice.balanced)}."
    )


def _table_of_scalings(scalings: Sequence[Scaling]) -> str:
    heads = [("Workload", True), ("Goal", True), ("Recipe", True)] + [
        (name, False)
        for name in ("Perfect until", "Useful until", "B_crit", "Fifth more examples at", "S_min")
    ]
    remark = (
        f"In brackets 90 % intervals, by the scatter about the fitted curve. Scaling is called "
        f"perfect while steps times batch size is within {PERFECT_TOLERANCE:.0%} of its minimum, a "
        f"batch size useful until steps are within {USEFUL_TOLERANCE:.0%} of the fewest. B_crit "
        f"and S_min are those of steps = S_min (1 + B_crit / B); the last column says by how many "
        f"doublings the points lie off that curve."
    )
    table = _table(
        "Where each curve bends, in numbers.",
        [*heads, ("Off the curve", False)],
        [_scaling_cells(scaling) for scaling in scalings],
    )
    return f'{table}<p class="lead">{remark}</p>'


def _scaling_cells(scaling: Scaling) -> list[str]:
    estimates = (
        scaling.perfect_scaling_until,
        scaling.max_useful_batch_size,
        scaling.critical_batch_size,
        scaling.critical_by_examples,
        scaling.steps_min,
    )
    off = scaling.fit_residual_log2
    return [
        scaling.workload,
        scaling.goal,
        scaling.recipe,
        *("" if estimate is None else in_words(estimate) for estimate in estimates),
        "" if off is None else f"{off:.2f}",
    ]


def panel_section(panel: Panel, show: Show) -> str:
    """All that there is about one workload and goal."""
    parts = [_steps(panel, show), _costs(panel, show), _best_values(panel, show)]
    parts += [_training_curves(panel, show), _all_tried(panel, show), _quality(panel, show)]
    parts += [_frontier_table(panel.rows)]
    heading = escape(f"{panel.workload}, until {panel.goal}")
    return f"<section><h2>{heading}</h2>{''.join(parts)}</section>"


def _steps(panel: Panel, show: Show) -> str:
    said = " ".join(sentence(scaling) for scaling in panel.scalings)
    return show(
        figures.steps_to_goal(panel.rows),
        "Steps to goal against batch size",
        said,
        "Both axes are logarithmic. Along the dashed line, twice the batch halves the steps; it "
        "passes through the point that needed the fewest examples.",
    )


def _costs(panel: Panel, show: Show) -> str:
    if not panel.costs:
        return ""
    best = ", ".join(f"{cost.recipe} {cost.batch_size:,}" for cost in panel.costs if cost.pareto)
    return show(
        figures.examples_against_steps(panel.costs, panel.recipes),
        "Work against time",
        f"Beaten in both by none: {best}.",
        "Steps are time, where there are devices for the whole batch; examples are work. Batch "
        "sizes that none beats in both are filled.",
    )


def _best_values(panel: Panel, show: Show) -> str:
    found = panel.tuned
    curves = {
        name: [c for c in found if c.name == name] for name in dict.fromkeys(c.name for c in found)
    }
    return "".join(
        show(
            figures.best_values(mine, panel.recipes),
            f"Best {name} against batch size",
            " ".join(map(_rule, mine)),
            "The winner's value at each batch size"
            + ("; and what the usual rules make of the first one." if mine[0].is_rate else "."),
        )
        for name, mine in curves.items()
    )


def _training_curves(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.training_curves(curves, panel.goal),
            f"{recipe}: {panel.goal.metric} while it trains",
            "The best trial of each batch size.",
            "Dark is a small batch, bright a large one. A trial stops at its goal unless asked to "
            "go on.",
        )
        for recipe, curves in panel.curves.items()
    )


def _all_tried(panel: Panel, show: Show) -> str:
    return "".join(
        show(
            figures.tried(tried.outcomes, tried.x, tried.y, y_from_one=tried.y_from_one),
            f"{recipe}: every trial by {tried.x} and {tried.y}",
            _counts(tried.outcomes),
            "How wide the good region is, where it moves as the batch grows, and how near its best "
            "point lies to an end of the ranges. The best trial is starred.",
        )
        for recipe, tried in panel.tried.items()
    )


def _quality(panel: Panel, show: Show) -> str:
    """Refused where trials were ended for their goal's sake, which would favour who trained on."""
    shown, refused = "", []
    for recipe, rows in panel.quality.items():
        if any(row.censored for row in rows):
            refused.append(recipe)
        elif any(row.value is not None for row in rows):
            shown += show(
                figures.best_within(rows),
                f"{recipe}: best {panel.goal.metric} within budgets",
                "",
                "Whether a large batch comes to less with as many steps, and with as many epochs. "
                "Small budgets are dark, large ones bright.",
            )
    if refused:
        shown += (
            f'<p class="lead">The best {escape(panel.goal.metric)} within budgets is not shown for '
            f"{escape(', '.join(refused))}: trials were ended as soon as they had reached their "
            f"goals or could no longer win, and what they would have come to isn't known. A sweep "
            f"with <code>stop: {{at_goal: false}}</code> tells.</p>"
        )
    return shown


def comparisons(panels: Sequence[Panel], show: Show) -> str:
    """Goals and workloads side by side, where there are several."""
    shown = []
    rows = [row for panel in panels for row in panel.rows]
    for workload, recipe in dict.fromkeys((row.workload, row.recipe) for row in rows):
        mine = [row for row in rows if (row.workload, row.recipe) == (workload, recipe)]
        if len({row.goal for row in mine}) > 1:
            shown.append(
                show(
                    figures.goals_compared(mine),
                    f"{workload}, {recipe}: goals compared",
                    f"Steps to each of {len({row.goal for row in mine})} goals.",
                    "Whether a stricter goal moves the batch size at which scaling ends.",
                )
            )
    if len({row.workload for row in rows}) > 1:
        curves: dict[str, list[FrontierRow]] = {}
        for row in rows:
            curves.setdefault(f"{row.workload}, {row.recipe}, {row.goal}", []).append(row)
        if any(row.steps and not row.censored for row in rows):
            shown.append(
                show(
                    figures.relative_steps(curves),
                    "Workloads and recipes compared",
                    "Steps to goal, relative to those at a common batch size.",
                    "Curves that go on falling longer gain more from a larger batch.",
                )
            )
    return f"<section><h2>Compared</h2>{''.join(shown)}</section>" if shown else ""


def course(spans: Sequence[Span], show: Show) -> str:
    """When which trial ran."""
    if not spans:
        return ""
    figure = show(
        figures.timeline(spans),
        "Which trial ran when",
        f"{len(spans):,} trials, by how they ended.",
        "Each bar is a trial, or what was trained of it after it was last set aside for others. "
        "Gaps are earlier parts of trials, and times in which a slot had nothing to train.",
    )
    return f"<section><h2>How the run went</h2>{figure}</section>"


def provenance_section(provenance: Mapping[str, Any], sweep_file: str) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>"
        for name, value in provenance.items()
    )
    return f"""
<section>
<h2>Where this comes from</h2>
<dl>{items}</dl>
<details><summary>Sweep file, in full</summary><pre>{escape(sweep_file)}</pre></details>
</section>
"""


def _rule(curve: Tuned) -> str:
    if curve.exponent is None or curve.exponent_interval is None:
        return f"{curve.recipe}: too few batch sizes to tell a rule."
    low, high = curve.exponent_interval
    rules = "; 1 is the linear rule, 0.5 the square root" if curve.is_rate else ""
    return (
        f"{curve.recipe}: it goes with the batch size to the power of {curve.exponent:.2f} "
        f"({low:.2f} to {high:.2f}{rules})."
    )


def _counts(outcomes: Sequence[tuple[int, Any]]) -> str:
    parts = [
        f"{len(table) - table['steps_to_goal'].null_count} of {len(table)} at {size:,}"
        for size, table in outcomes
    ]
    return f"Reached the goal: {', '.join(parts)}."


def _frontier_table(rows: Sequence[FrontierRow]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.params or {}))
    heads = [
        ("Recipe", True), ("Batch size", False), ("Steps", False), ("±", False),
        ("Examples", False), ("Trial", False), *((name, False) for name in names),
        ("Trials", True), ("Notes", True),
    ]  # fmt: skip
    table = _table("The frontier.", heads, [_frontier_cells(row, names) for row in rows])
    return (
        f'{table}<p class="lead">Per study, the trial that reached the goal in the fewest steps. '
        f"± is the distance to its previous measurement.</p>"
    )


def _frontier_cells(row: FrontierRow, names: Sequence[str]) -> list[str]:
    if row.censored:
        steps = "censored"
    else:
        steps = "not reached" if row.steps is None else f"{row.steps:,}"
    return [
        row.recipe,
        f"{row.batch_size:,}",
        steps,
        "" if row.resolution is None else f"{row.resolution:,}",
        "" if row.steps is None else f"{row.steps * row.batch_size:,}",
        "" if row.trial is None else str(row.trial),
        *(_value((row.params or {}).get(name)) for name in names),
        ", ".join(f"{count} {status}" for status, count in row.trials.items()),
        "; ".join(row.remarks()),
    ]


def _table(caption: str, heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """`heads` say which columns are text; the first one names its row."""
    looks = [
        ' class="text wrap"' if name == "Notes" else ' class="text"' if text else ""
        for name, text in heads
    ]
    head = "".join(
        f'<th scope="col"{look}>{escape(name)}</th>'
        for (name, _), look in zip(heads, looks, strict=True)
    )
    body = ""
    for first, *rest in rows:
        cells = "".join(
            f"<td{look}>{escape(cell)}</td>" for look, cell in zip(looks[1:], rest, strict=True)
        )
        body += f'<tr><th scope="row"{looks[0]}>{escape(first)}</th>{cells}</tr>\n'
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table>
<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""


def _value(value: Value | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
