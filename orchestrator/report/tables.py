"""The page's tables, as HTML. All text that comes from a run is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from orchestrator.analysis import (
    Cost,
    Scaling,
    batch_sizes_of,
    beside_minima,
    compared_in_words,
    compared_with,
    fewest_steps,
    in_count,
    in_time,
    in_words,
    median_of,
    on_medians,
    remarks_of,
    steps_of,
    trained_points,
)
from orchestrator.records import Value
from orchestrator.report.content import Panel
from orchestrator.results import FrontierRow

MOST_ROWS = 2000
"""The most rows of a table; each takes about 500 bytes."""

Heads = Sequence[tuple[str, bool]]
"""A column: its name, and whether it holds text."""


def table_of_scalings(scalings: Sequence[Scaling]) -> str:
    """Returns the table of where each curve bends."""
    heads = [
        ("Recipe", True), ("+20 % examples at", False), ("Useful until", False), ("B_crit", False),
        ("Exponent", False), ("S_min", False), ("Perfect until", False), ("Off the curve", False),
        ("Points are", True), ("Remarks", True),
    ]  # fmt: skip
    rows = [_scaling_cells(one) for one in scalings]
    return table("Where each curve bends, in batch sizes.", heads, rows) if rows else ""


def _scaling_cells(scaling: Scaling) -> list[str]:
    estimates = (
        scaling.max_useful_batch_size,
        scaling.critical_batch_size,
        scaling.exponent,
        scaling.steps_min,
        scaling.perfect_scaling_until,
    )
    off, fifth, bound = (
        scaling.fit_residual_log2, scaling.critical_by_examples, scaling.critical_by_examples_is,
    )  # fmt: skip
    remarks = remarks_of(scaling) or [f"{scaling.verdict[0].upper()}{scaling.verdict[1:]}."]
    left_out = [f"Left out: {point}." for point in scaling.left_out]
    return [
        scaling.recipe,
        "" if fifth is None else bound if bound.startswith("below") else in_words(fifth),
        *("" if estimate is None else in_words(estimate) for estimate in estimates),
        "" if off is None else f"{off:.2f}",
        "medians of repeats" if scaling.of_medians else "minima over trials",
        " ".join([*remarks, *left_out]),
    ]


def table_of_further(scalings: Sequence[Scaling]) -> str:
    """Returns the table that says which recipe scales further; it is empty if there is only one
    curve."""
    heads = [("Recipe", True), ("+20 % examples at", False), ("Fewest steps", False)]
    known = [one for one in scalings if one.curves is not None]
    if len(known) < 2:
        return ""
    first = min(known, key=fewest_steps)
    rows = [
        [one.recipe, *(compared_in_words(ratio) for ratio in compared_with(one, first))]
        for one in known
        if one is not first
    ]
    caption = (
        f"Which recipe scales further: each over {first.recipe}, which takes the fewest steps. Not "
        f"decided: the 90 % interval of the ratio holds 1."
    )
    return table(escape(caption), heads, rows)


def table_of_advice(panel: Panel) -> str:
    """Returns the table of the recommended batch sizes of each recipe."""
    heads = [("Recipe", True), ("Fastest", True), ("Balanced", True), ("Cheapest", True)]
    rows = [
        [recipe, *(in_short(cost) for cost in (one.fastest, one.balanced, one.cheapest))]
        for recipe, one in panel.advice_by_recipe.items()
    ]
    return table("The recommended batch size of each recipe.", heads, rows) if rows else ""


def in_short(cost: Cost) -> str:
    """Says a batch size and what it needs."""
    short = f"{cost.batch_size:,} ({in_count(cost.steps)} steps"
    for one in cost.priced:
        short += f", {in_time(one.seconds)} on {in_devices(one.devices)}"
    return f"{short})"


def in_devices(count: int) -> str:
    return f"{count:,} device{'s' * (count != 1)}"


def table_of_ratios(rows: Sequence[FrontierRow]) -> str:
    """Returns the table that compares recipes; it is empty if there is only one recipe."""
    points = trained_points(rows)
    steps = {(point.recipe, point.batch_size): point.steps for point in points}
    sizes = sorted({size for _, size in steps})
    fewest: dict[int, float] = {}
    for (_, size), count in steps.items():
        fewest[size] = min(count, fewest.get(size, count))
    recipes = list(dict.fromkeys(point.recipe for point in points))
    if len(recipes) < 2:
        return ""
    cells = [
        [
            recipe,
            *(f"{steps[recipe, b] / fewest[b]:.2f}" if (recipe, b) in steps else "" for b in sizes),
        ]
        for recipe in recipes
    ]
    curves = {recipe: [row for row in rows if row.recipe == recipe] for recipe in recipes}
    caption = (
        f"Steps of each recipe over the fewest steps of any recipe, by batch size."
        f"{beside_minima(curves)}"
    )
    return table(
        escape(caption), [("Recipe", True), *((f"{size:,}", False) for size in sizes)], cells
    )


def table_of_frontier(rows: Sequence[FrontierRow]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.answering[1] or {}))
    repeated = any(row.repeats for row in rows)
    heads = [
        ("Recipe", True), ("Batch size", False), ("Steps", False), ("±", False),
        *([("Median", False)] if repeated else []), ("Examples", False), ("Trial", False),
        *((name, False) for name in names), ("Trials", True), ("Notes", True),
    ]  # fmt: skip
    rendered = table(
        "The frontier: the trial of each study that reached the goal in the fewest steps.",
        heads,
        [_frontier_cells(row, names, repeated) for row in rows],
    )
    return (
        f'{rendered}<p class="lead">± is the number of steps between the measurement that passed '
        f"the goal and the measurement before it. {on_medians(rows)}</p>"
    )


def _frontier_cells(row: FrontierRow, names: Sequence[str], repeated: bool) -> list[str]:
    return [
        row.recipe,
        batch_sizes_of(row),
        steps_of(row),
        "" if row.resolution is None else f"{row.resolution:,}",
        *([median_of(row)] if repeated else []),
        "" if row.examples is None else f"{row.examples:,}",
        "" if row.trial is None else str(row.answering[0]),
        *(short((row.answering[1] or {}).get(name)) for name in names),
        ", ".join(f"{count} {status}" for status, count in row.trials.items()),
        "; ".join(row.remarks()),
    ]


def table(caption: str, heads: Heads, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose first column names the row. If there are too many rows, only the first
    are shown."""
    if len(rows) > MOST_ROWS:
        caption = f"{caption} The first {MOST_ROWS:,} of {len(rows):,} rows."
        rows = rows[:MOST_ROWS]
    looks = [_look(name, text) for name, text in heads]
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


def _look(name: str, text: bool) -> str:
    if name == "Notes":
        return ' class="text wrap"'
    if name in ("Law", "Remarks", "Trials"):
        return ' class="text told"'
    return ' class="text"' if text else ""


def short(value: Value | None) -> str:
    """Formats the value of a metaparameter."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
