"""What the atlas found: decides the claims of `claims.py` and writes docs/findings.md.

    python atlas/findings.py                    print all findings
    python atlas/findings.py regimes            print one of them
    python atlas/findings.py --write            write the page and its pictures

Every number comes from the runs in atlas/runs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from claims import CLAIMS
from lessons import ranges
from measured import (
    CNN,
    DIGITS,
    GROUPS,
    MIDDLE,
    RUNS,
    forecasts_of,
    goals_that_hold,
    known_sizes,
    numbers_of,
    scalings_of,
    steps,
    values_of,
    verdicts_of,
)
from picture import curves, intervals, said
from rules import Answer, Claim

from orchestrator.analysis import Scaling
from orchestrator.analysis.estimates import Estimate

DOCS = Path(__file__).parent.parent / "docs"
POWER = Path(__file__).parent / "power.json"
PICTURES = "pictures/atlas"

CURVES = (
    *("digits_mlp", "digits_cnn", "fashion_mnist", "subsets", "simple_cnn"),
    *("cooled_cnn", "cooled_gpt", "noisy_quadratic"),
)
"""Runs whose curves are in the atlas."""

BEGINNING = Path(__file__).parent / "beginning.md"
"""What stands before the advice, and, from its heading on, after it."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("claims", nargs="*", help="names of claims; all of them if left out")
    parser.add_argument("--write", action="store_true", help="write docs/findings.md")
    arguments = parser.parse_args()
    known = {claim.name: claim for claim in CLAIMS}
    for name in arguments.claims:
        if name not in known:
            parser.error(f"{name!r} is no claim. The claims are {', '.join(known)}.")
    if arguments.write:
        for path, text in files().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)
        return 0
    for name in arguments.claims or known:
        print_finding(known[name], measured_of(known[name]))
    return 0


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a claim, and what follows."""

    said: str
    answer: Answer
    cells: Sequence[tuple[str, Estimate]] = ()
    axis: str = ""
    bounds: tuple[float, ...] = ()


def print_finding(claim: Claim, found: Measured) -> None:
    print(f"{claim.title}: {found.answer}\n  {found.said}")
    for name, estimate in found.cells:
        print(f"    {name:60} {said(estimate)}")


def files() -> dict[Path, str]:
    """The page and its pictures, as paths with their texts."""
    found = [(claim, measured_of(claim)) for claim in CLAIMS]
    with goals_that_hold():
        held = {claim.name: measured_of(claim) for claim in CLAIMS if claim.name in ALSO_HELD}
    scalings, three = scalings_of_all(), three_instruments()
    pictures = {
        DOCS / PICTURES / f"{claim.name}.svg": picture_of(measured)
        for claim, measured in found
        if measured.cells
    }
    pictures[DOCS / PICTURES / "curves.svg"] = curves(steps_of_all())
    pictures[DOCS / PICTURES / "critical_batch_sizes.svg"] = intervals(
        [
            (f"{scaling.workload}, {scaling.recipe}, {scaling.goal}", scaling.critical_batch_size)
            for _, scaling in scalings
            if scaling.critical_batch_size is not None
        ],
        axis="B_crit, in examples",
    )
    if three:
        picture = intervals(three, axis="B_crit, in examples")
        pictures[DOCS / PICTURES / "instruments.svg"] = picture
    beginning, decided, how = BEGINNING.read_text(encoding="utf-8").partition("## How it was")
    parts = [
        beginning.rstrip() + "\n",
        tomorrow(found, held),
        decided + how,
        summary(found),
        of_goals_that_hold(found, held),
        *(section(claim, measured) for claim, measured in found),
        instruments(three) if three else "",
        atlas(scalings),
        next_search(),
    ]
    return {DOCS / "findings.md": "\n".join(parts), **pictures}


def measured_of(claim: Claim) -> Measured:
    """What was measured of a claim, or that some of its runs are not there yet."""
    missing = [group for group in claim.groups if not (RUNS / f"{group}.zip").exists()]
    if missing:
        return Measured(said=f"Still to be measured: {', '.join(missing)}.", answer="not measured")
    asked = claim.rule()
    numbers = numbers_of(asked)
    return Measured(
        said=asked.said(numbers),
        answer=asked.decide(numbers) if len(numbers.names) else "not measured",
        cells=[*zip(numbers.names, numbers.estimates(), strict=True), *asked.beside],
        axis=asked.axis,
        bounds=asked.bounds,
    )


TOLD = 10
"""Number of lines in which the page says what follows."""

LATER = (
    "momentum_equal_at_first",
    "layerwise_at_full_batch",
    "effective_rate",
    "data_set_size",
    "constant_half_life",
    "schedule_free_is_smooth",
    "local_critical_rises",
)
"""Claims whose answers change least of what somebody does, so they are told last."""


def tomorrow(found: Sequence[tuple[Claim, Measured]], held: Mapping[str, Measured]) -> str:
    """What the answers mean for somebody who chooses a batch size, in the order of the claims, and
    the curves."""
    said = [
        (
            claim.name in LATER,
            f"- **{claim.advice[measured.answer]}** {measured.said} "
            + _unlike(measured, held.get(claim.name, measured))
            + f"[How?](#{_anchor(claim.title)})",
        )
        for claim, measured in found
        if measured.answer in claim.advice
    ]
    answers = Counter(measured.answer for _, measured in found)
    missing = f", and {number} are not measured yet" if (number := answers["not measured"]) else ""
    chosen = [text for _, text in sorted(said, key=lambda one: one[0])]
    lines = [
        "## What to do tomorrow",
        "",
        *chosen[:TOLD],
        "",
        f"Of all {len(found)} claims, {answers['undecided']} are undecided{missing}. "
        f"{len(held)} were also asked of goals that hold; where the answer is another one, the "
        "lines above say so.",
        "",
        "## The curves",
        "",
        "Steps to the middle goal against the batch size, of four optimizers on the three networks "
        "on which most claims rest. With perfect scaling, steps fall like the dashed line. Lines "
        "across the points are 90 % intervals.",
        "",
        f"![Steps against batch size]({PICTURES}/curves.svg)",
    ]
    return "\n".join(lines) + "\n"


def _unlike(measured: Measured, held: Measured) -> str:
    if held.answer == measured.answer:
        return ""
    first = held.said.partition(". ")[0].rstrip(".")
    holds = "[goals that hold](#the-same-with-goals-that-hold)"
    return f"With {holds}, the answer is *{held.answer}*: {first}. "


def summary(found: Sequence[tuple[Claim, Measured]]) -> str:
    lines = [
        "## All claims",
        "",
        "Below, each has its rule and a picture. Where too few repeats reached the goal to have a "
        "median, a point is missing, and with it the ratios that need it.",
        "",
        "| claim | answer | measured |",
        "|---|---|---|",
    ]
    lines += [
        f"| [{claim.title}](#{_anchor(claim.title)}) | {measured.answer} | {measured.said} |"
        for claim, measured in found
    ]
    return "\n".join(lines) + "\n"


ALSO_HELD = (
    *("regimes", "workloads_differ", "momentum_extends", "momentum_equal_at_first"),
    *("preconditioning_extends", "layerwise_at_full_batch", "effective_rate"),
    *("noise_scale_foretells", "muon_keeps_efficiency"),
)
"""Claims whose runs also searched for a goal that holds."""


def of_goals_that_hold(
    found: Sequence[tuple[Claim, Measured]], held: Mapping[str, Measured]
) -> str:
    """What the same rules say of other goals, which decide nothing."""
    lines = [
        "## The same with goals that hold",
        "",
        "The claims above are about the first measurement that passes the goal. These can also be "
        "asked of the first of three in a row that do. That was added when the answers were known, "
        "and decides nothing:",
        "",
        "| claim | first passage | goal that holds | measured with the goal that holds |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [{claim.title}](#{_anchor(claim.title)}) | {measured.answer} "
        f"| {held[claim.name].answer} | {held[claim.name].said} |"
        for claim, measured in found
        if claim.name in held
    ]
    return "\n".join(lines) + "\n"


def section(claim: Claim, measured: Measured) -> str:
    claimed, _, rule = inspect.cleandoc(claim.rule.__doc__ or "").partition("\n\n")
    power = json.loads(POWER.read_text())[claim.name]
    runs = ", ".join(
        f"[{group}](../atlas/runs/{group}.zip)" if (RUNS / f"{group}.zip").exists() else group
        for group in claim.groups
    )
    picture = [f"![{claim.title}]({PICTURES}/{claim.name}.svg)", ""] if measured.cells else []
    return "\n".join(
        [
            f"## {claim.title}",
            "",
            f"**Claim.** {_joined(claimed)}",
            "",
            f"**How it is decided.** {_joined(rule)} *Power*: {100 * power['true']:.0f} %, *by "
            f"chance*: {100 * power['false']:.0f} %.",
            "",
            f"**Measured.** {measured.said} **{measured.answer.capitalize()}.**",
            "",
            *picture,
            f"Command: `python atlas/findings.py {claim.name}`. Runs: {runs}.",
            "",
        ]
    )


def picture_of(found: Measured) -> str:
    return intervals(found.cells, axis=found.axis, bounds=found.bounds)


def steps_of_all() -> dict[str, dict[str, list[tuple[int, Estimate]]]]:
    """The steps of four optimizers on each network, at each batch size."""
    return {
        f"{workload}, {MIDDLE[workload]}": {
            recipe: [
                (size, values_of({"": steps(workload, recipe, size)}).estimates()[0])
                for size in known_sizes(workload, (recipe,), MIDDLE[workload])
            ]
            for recipe in ("sgd", "momentum", "adamw", "muon")
        }
        for workload in GROUPS
    }


def scalings_of_all() -> list[tuple[str, Scaling]]:
    return [
        (group, scaling)
        for group in CURVES
        if (RUNS / f"{group}.zip").exists()
        for scaling in scalings_of(group)
    ]


def three_instruments() -> list[tuple[str, Estimate]]:
    """B_crit by forecast, by branches and by sweep, for SGD on the two cheapest workloads."""
    found = []
    for workload in (DIGITS, CNN):
        runs = (GROUPS[workload], f"branch_{GROUPS[workload]}")
        if not all((RUNS / f"{run}.zip").exists() for run in runs):
            continue
        (compared,) = (one for one in forecasts_of(workload) if one.recipe == "sgd")
        found.append((f"{workload}, forecast by the noise scale", compared.forecast))
        for verdict in verdicts_of(f"branch_{GROUPS[workload]}"):
            # An interval from 0 to infinity tells nothing.
            if verdict.is_known and verdict.critical is not None and verdict.critical.low:
                name = f"{workload}, branches after {verdict.at_examples:,} examples"
                found.append((name, verdict.critical))
        if compared.measured is not None:
            found.append((f"{workload}, measured by the sweep", compared.measured))
    return found


def instruments(three: Sequence[tuple[str, Estimate]]) -> str:
    lengths = []
    for workload in (DIGITS, CNN):
        smallest = known_sizes(workload, ("sgd",), MIDDLE[workload])[0]
        (taken,) = values_of({"": steps(workload, "sgd", smallest)}).estimates()
        lengths.append(f"{taken.value * smallest:,.0f} examples on {workload}")
    lines = [
        "## Three instruments on one scale",
        "",
        "B_crit of SGD on the two cheapest workloads, by the noise scale of a few trainings, by "
        "branches from one training, and by a sweep. Forecast and sweep are about whole trainings "
        f"to the middle goal, of {' and '.join(lengths)} at the smallest batch size. Branches are "
        "about one point of a training each, the last of them beyond that goal, and B_crit grows "
        "along a training.",
        "",
        f"![Three instruments]({PICTURES}/instruments.svg)",
        "",
        "| what | B_crit |",
        "|---|---|",
        *(f"| {name} | {said(estimate)} |" for name, estimate in three),
    ]
    return "\n".join(lines) + "\n"


def atlas(scalings: Sequence[tuple[str, Scaling]]) -> str:
    lines = [
        "## The atlas",
        "",
        "The critical batch size of every curve that follows S_min (1 + B_crit / B):",
        "",
        f"![Critical batch sizes]({PICTURES}/critical_batch_sizes.svg)",
        "",
        "The table lists all curves. Beyond *perfect until*, a training takes over 30 % more "
        "examples than at best. Beyond *useful until*, larger batches up to the largest tested "
        "save less than a tenth of the steps. Both are about the batch sizes of the curve: where "
        "it ends early, *useful until* lies below B_crit. They are of bends of any sharpness, and "
        "B_crit of the law above, so that *perfect until* may lie above it where a bend is sharp. "
        "A curve that two runs have stands twice: they differ in their points, seeds and batch "
        "sizes. A click on the head of a column sorts by it; the last column leads to the run.",
        "",
        '<div class="sortable" markdown>',
        "",
        "| workload | recipe | goal | perfect until | a fifth more examples at | B_crit "
        "| useful until | report |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, scaling in scalings:
        numbers = (
            scaling.perfect_scaling_until,
            scaling.critical_by_examples,
            scaling.critical_batch_size,
            scaling.max_useful_batch_size,
        )
        cells = ["not known" if number is None else said(number) for number in numbers]
        lines.append(
            f"| {scaling.workload} | {scaling.recipe} | {scaling.goal} | {' | '.join(cells)} "
            f"| [{group}](../atlas/runs/{group}.zip) |"
        )
    return "\n".join([*lines, "", "</div>"]) + "\n"


def next_search() -> str:
    """What the runs tell about ranges."""
    lines = [
        "## For your next search",
        "",
        "**Which ranges?** Each row is about the best points of all batch sizes and goals: where "
        "in the searched range they lie. If many lie at one end, the range is too narrow there. "
        "If all lie in the middle, the range wastes points. "
        "[orchestrate spaces](command-line.md#orchestrate-spaces) prints today's.",
        "",
        *ranges(),
    ]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    """The anchor of a heading on the site."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.strip().replace(" ", "-")


def _joined(text: str) -> str:
    text = " ".join(text.split())
    return re.sub(r"\b(\d{4}\.\d{5})\b", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


if __name__ == "__main__":
    sys.exit(main())
