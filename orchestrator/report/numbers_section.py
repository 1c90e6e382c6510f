"""The answer in numbers, and which law each curve follows, as HTML."""

from __future__ import annotations

from html import escape

from orchestrator.analysis import (
    LAW_NAMES,
    LawChoice,
    Scaling,
    exponent_in_words,
    in_words,
    remarks_of,
)
from orchestrator.analysis.laws import LAW_CONFIDENCE
from orchestrator.analysis.scaling import PERFECT_TOLERANCE, USEFUL_TOLERANCE
from orchestrator.report.answer_section import MOST_SENTENCES, listed, sentences
from orchestrator.report.content import Panel
from orchestrator.report.sections import Show
from orchestrator.report.tables import table, table_of_advice, table_of_ratios, table_of_scalings

MOST_TOLD = 3
"""The most recipes that the line of a fold names."""

HOW_TO_READ = (
    "Numbers in brackets are 90 % intervals. They include the scatter about the fitted curve, the "
    "distance between measurements and, where they are known, the effects of seeds and of few "
    "trials. Perfect until: steps times batch size is within "
    f"{100 * PERFECT_TOLERANCE:.0f} % of its minimum. Useful until: steps are within "
    f"{100 * USEFUL_TOLERANCE:.0f} % of the fewest. B_crit belongs to the law "
    "steps = S_min (1 + B_crit / B); it is left out where the points refuse that law. "
    "+20 % examples at: this batch size takes a fifth more examples than the fewest. Off the "
    "curve: the root mean square distance of the points from the fitted curve, in doublings."
)

BY_STEP_TIMES = (
    "We compare every batch size on every number of devices on which steps were timed. "
    "Fastest: of all choices within 10 % of the shortest time to the goal, the choice with the "
    "fewest device-seconds. Cheapest: of all choices within 10 % of the fewest device-seconds, the "
    "choice with the shortest time. Balanced: the smallest product of time and device-seconds. "
    "Step times were measured while other trials ran, which may have slowed them down."
)

BY_STEPS = (
    "Step times are not known, so steps stand for time and examples for work. Fastest: of all "
    "batch sizes within 10 % of the fewest steps, the batch size with the fewest examples. "
    "Cheapest: of all batch sizes within 10 % of the fewest examples, the batch size with the "
    "fewest steps. Balanced: the smallest product of steps and examples."
)

LAW_HEADS = [
    ("Recipe", True), ("Law", True),
    (f"Exponent ({100 * LAW_CONFIDENCE:.0f} % interval)", False),
    ("Measure next at", False), ("Points are", True), ("Remarks", True),
]  # fmt: skip

LAW_READING = (
    "A bend is the law steps = S_min (1 + (B_c / B)^a)^(1/a). Its exponent a is 1 for the "
    "hyperbola S_min (1 + B_crit / B) and infinite for a curve that is straight up to B_c and flat "
    "beyond it. Where the law is undecided, the first law named lies closer to the points, and a "
    "measurement at the batch size in the fourth column would tell most."
)


def numbers(panel: Panel, show: Show) -> str:
    lines = sentences(panel, most=None)
    text = listed(lines) if len(lines) > MOST_SENTENCES else ""
    scalings = table_of_scalings(panel.scalings)
    if scalings:
        text += f'{scalings}<p class="lead">{HOW_TO_READ}</p>'
    advised = table_of_advice(panel)
    if advised:
        text += f'{advised}<p class="lead">{_basis(panel)}</p>'
    return text + table_of_ratios(panel.rows)


def numbers_found(panel: Panel) -> str:
    known = [
        f"{in_words(scaling.critical_batch_size)} for {scaling.recipe}"
        for scaling in panel.drawn.scalings
        if scaling.critical_batch_size is not None
    ]
    more = len(known) - MOST_TOLD
    said = ", ".join(known[:MOST_TOLD]) + (f", and {more:,} more" if more > 0 else "")
    return f"B_crit is {said}" if known else "Where each curve bends, and how recipes compare"


def _basis(panel: Panel) -> str:
    """Says how recommendations are derived."""
    found = [advice for advice in (panel.advice, *panel.advice_by_recipe.values()) if advice]
    said = []
    if any(advice.by_step_times for advice in found):
        said.append(BY_STEP_TIMES)
        residuals = [device.residual for device in panel.devices.values()]
        off = [residual for residual in residuals if residual is not None]
        if off:
            said.append(
                f"Step times scatter about a straight line in the batch size by up to "
                f"{100 * max(off):.0f} % (root mean square of a recipe)."
            )
    if not all(advice.by_step_times for advice in found):
        said.append(BY_STEPS)
    return " ".join(said)


def laws(panel: Panel, show: Show) -> str:
    rows = [_law_cells(scaling) for scaling in panel.scalings]
    # Most curves need no remark.
    width = len(LAW_HEADS) if any(row[-1] for row in rows) else len(LAW_HEADS) - 1
    heads, rows = LAW_HEADS[:width], [row[:width] for row in rows]
    found = table("The law that each curve follows.", heads, rows)
    return f'{found}<p class="lead">{escape(LAW_READING)}</p>'


def _law_cells(scaling: Scaling) -> list[str]:
    law = None if scaling.is_flat else scaling.law
    if scaling.is_flat or scaling.perfect_scaling_until is None:
        remarks = [f"{scaling.verdict[0].upper()}{scaling.verdict[1:]}."]
    else:
        remarks = remarks_of(scaling)
    left_out = [f"Left out: {point}." for point in scaling.left_out]
    return [
        scaling.recipe,
        "not known" if law is None else _name(law),
        "" if law is None or law.exponent is None else exponent_in_words(law.exponent, bare=True),
        "" if law is None or law.deciding_size is None else f"{law.deciding_size:,}",
        "medians of repeats" if scaling.of_medians else "minima over trials",
        " ".join([*remarks, *left_out]),
    ]


def _name(law: LawChoice) -> str:
    if law.law == "undecided":
        return f"undecided: {' or '.join(map(_short, law.between))}"
    return _short(law.law) if law.law in LAW_NAMES else "no law that was tried fits"


def _short(law: str) -> str:
    return LAW_NAMES[law].removesuffix(" S_min (1 + B_crit / B)")


def laws_found(panel: Panel) -> str:
    known = [scaling.law for scaling in panel.scalings if scaling.law and not scaling.is_flat]
    if not known:
        return "Not known: too few batch sizes, or nothing bends"
    undecided = [law for law in known if law.law == "undecided"]
    lawless = sum(law.curve is None for law in known)
    if not undecided:
        return f"No law fits {lawless:,} of {len(known):,} curves" if lawless else "Decided"
    said = f"Undecided for {len(undecided):,} of {len(known):,} curves"
    sizes = sorted({law.deciding_size for law in undecided if law.deciding_size is not None})
    if not sizes:
        return said
    some = " and ".join(f"{size:,}" for size in sizes[:MOST_TOLD])
    where = f"measurements at batch sizes {some}" if len(sizes) > 1 else f"batch size {some}"
    return f"{said}; {where} would tell most"
