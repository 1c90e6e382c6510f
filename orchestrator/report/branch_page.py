"""The page of a run of branches: how large the batch may be along one training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from orchestrator.analysis.branch_costs import FURTHEST
from orchestrator.analysis.branches import FactorCost, Verdict
from orchestrator.analysis.estimates import ratio_of
from orchestrator.analysis.words import (
    confirmed_in_words,
    critical_in_words,
    factor_in_words,
    fifth_more_in_words,
    in_words,
    schedules_in_words,
    verdict_in_words,
)
from orchestrator.files.places import Place
from orchestrator.files.yaml_files import write_yaml
from orchestrator.report.branch_content import (
    BranchContent,
    batch_sizes_along,
    marks_of,
    trunk_and_branches,
)
from orchestrator.report.page import Figures, Images, page_of, provenance_of
from orchestrator.report.sections import (
    Show,
    bullets,
    cards,
    contents,
    lead,
    provenance_section,
    section,
    table,
)

POINT = "After examples"

READING = (
    "A batch size costs a fifth more examples if it needs 1.2 times the examples that the trunk's "
    "batch size needs to reach the same loss. The local critical batch size B_crit belongs to the "
    "law c = (1 + kb / B_crit) / (1 + b / B_crit): a batch size k times the trunk's batch size b "
    "needs c times the examples. It is fitted to all batch sizes of a point. Numbers in brackets "
    "are 90 % intervals. The conservative schedule follows the lower ends of the intervals of the "
    "batch size that costs a fifth more examples, the central schedule follows the measured "
    "values; both use powers of two. Learning rates are multiples of the trunk's learning rate. "
    "All this is about this one trunk: one with another seed may give other answers."
)

LINES = (
    " Each thin line is the mean over the judging seeds of the longest branches, at the learning "
    "rate that was chosen for their batch size. Blue is the trunk's batch size; larger batch sizes "
    "go from dark to bright. If a line lies to the right of the blue line, that batch size costs "
    "more examples. A click on a batch size in the legend hides its lines."
)


def write_branch_report(
    content: BranchContent,
    place: Place,
    *,
    reload_seconds: int | None = None,
    images: Images = None,
) -> None:
    """Writes the page to `place`, whole or not at all. While the run goes on, browsers reload the
    page every `reload_seconds` seconds."""
    shown = Figures(images)
    run = content.run
    text = _answer(content, going_on=reload_seconds is not None)
    text += _along(content, shown.show) + _costs(content, shown.show)
    text += _schedules(content.schedules)
    text += provenance_section(provenance_of(run), write_yaml(run.sweep()))
    page = page_of(
        f"{lead(escape(_about(content)))}{contents(text)}{text}",
        title=content.sweep.name,
        about="how large the batch may be along a training",
        reload_seconds=reload_seconds,
    )
    place.write_text(page)
    shown.save()


def _about(content: BranchContent) -> str:
    trunk = content.trunk
    factors = ", ".join(f"{factor:,}" for factor in content.factors)
    return (
        f"How large may the batch be, and from which example on? The trunk is a training of "
        f"{trunk.workload} with {trunk.optimizer} at batch size {trunk.batch_size:,}. Branches "
        f"continue it from {len(content.points)} of its points at {factors} times that batch size, "
        f"with several orders of the examples, each at the best of the learning rates tried. The "
        f"cost of a batch size is the ratio of the examples that its branches and the trunk need "
        f"for the same {content.loss}."
    )


def _answer(content: BranchContent, *, going_on: bool) -> str:
    text = _notice(content) * (not going_on)
    if not content.verdicts:
        text += "<p>No branches have been trained far enough to tell.</p>"
    problems = [f"After {at:,} examples: {why}" for at, why in content.queue.problems.items()]
    text += bullets([*map(verdict_in_words, content.verdicts), *problems])
    if not content.verdicts:
        return section("answer", "The answer", text)
    lines = schedules_in_words(content.schedules, content.total_examples)
    lines += map(confirmed_in_words, content.confirmed)
    text += cards(_card(*one) for one in content.schedules.items())
    text += bullets(lines) + lead(escape(READING))
    return section("answer", "The answer", text)


def _notice(content: BranchContent) -> str:
    if content.queue.done:
        return ""
    count, known = len(content.points), len(content.verdicts)
    return (
        f'<p class="notice">This run is not complete: branches of {known} of {count} points have '
        f"been trained to some length. <code>orchestrate resume</code> goes on with it.</p>"
    )


def _card(name: str, schedule: Mapping[str, Any]) -> tuple[str, str]:
    first, *later = schedule["stages"]
    grown = "".join(
        f", {stage['batch_size']:,} from {stage['examples']:,} examples on" for stage in later
    )
    stages = f"batch size {first['batch_size']:,}{grown or ' all along'}"
    saved = f"<b>{schedule['steps_saved']:.0%}</b> fewer steps"
    return f"{name.capitalize()} schedule", f"{saved}<br>{stages}"


def _along(content: BranchContent, show: Show) -> str:
    """Shows how large the batch may be, beside what the noise scale forecasts."""
    series = marks_of(content)
    if not any(series.values()):
        return ""
    size = content.trunk.batch_size
    figure = batch_sizes_along(
        series,
        content.noise,
        content.schedules,
        trunk=size,
        largest=size * content.factors[-1],
        until=content.total_examples,
    )
    steps = " The stairs are the two schedules." if content.schedules else ""
    missing = ", ".join(f"{v.at_examples:,}" for v in content.verdicts if not v.is_known)
    unknown = f" After {missing} examples it is not known, and not drawn." if missing else ""
    text = show(
        figure,
        "Batch sizes along the training",
        "",
        f"Marks of one point stand side by side, with 90 % intervals.{steps} The dashed line is "
        f"the trunk's batch size, the dotted line the largest that was measured. A hollow mark is "
        f"a lower bound. The noise scale of the trunk's gradients is a forecast of the local "
        f"critical batch size.{unknown}",
    )
    text += _noise_table(content)
    return section("along", "How large the batch may be", text)


def _costs(content: BranchContent, show: Show) -> str:
    text = ""
    if content.trunk_losses:
        text = show(
            trunk_and_branches(content.trunk_losses, content.points, content.curves, content.loss),
            f"{content.loss} of the trunk and its branches",
            "",
            f"Diamonds are the points from which branches go on.{LINES if content.curves else ''}",
        )
    text += _cost_table(content.verdicts) + _length_table(content)
    return section("costs", "What larger batches cost", text) if text else ""


def _schedules(schedules: Mapping[str, Mapping[str, Any]]) -> str:
    """Shows the schedules, ready to copy into this project and into other trainers."""
    if not schedules:
        return ""
    text = lead(
        "Learning rates are multiples of the trunk's learning rate at the same example. The file "
        "schedules.yaml in the run's folder has the same schedules."
    )
    for name, schedule in schedules.items():
        text += f"<h3>{escape(name.capitalize())}</h3>"
        for what, written in (
            ("A recipe for a sweep file", write_yaml({"recipes": [schedule["recipe"]]})),
            ("The stages, by examples", write_yaml(schedule["stages"])),
            ("START:BATCH_SIZE in samples, for trainers after Megatron", schedule["samples"]),
        ):
            text += f'<h4>{what}</h4><pre tabindex="0">{escape(written)}</pre>'
    return section("schedules", "The schedules, to copy", text)


def _cost_table(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return ""
    sizes = [cost.factor * verdicts[0].batch_size for cost in verdicts[0].costs]
    rows = [
        [
            f"{verdict.at_examples:,}",
            *(f"{_ratio(cost, verdict)}, x{cost.rate:.3g}" for cost in verdict.costs),
        ]
        for verdict in verdicts
    ]
    return table(
        "For each batch size, how many times the examples it needs for the loss that the trunk's "
        "own batch size reaches, with 90 % intervals, and its best learning rate, as a multiple of "
        "the trunk's. Below 1, the larger batch needs fewer examples.",
        [POINT, *(f"Batch size {size:,}" for size in sizes)],
        rows,
    )


def _ratio(cost: FactorCost, verdict: Verdict) -> str:
    if cost.factor == 1:
        return "1"
    if not verdict.is_known:
        return "not known"
    if cost.examples_ratio.low == math.inf:
        return "never"
    least = 1 / FURTHEST  # smaller ones are not told apart
    return in_words(cost.examples_ratio, lambda e: f"{e:.2f}" if e > least else f"≤ {least:.2f}")


def _length_table(content: BranchContent) -> str:
    heads = "Length of branches, in examples", "Costs a fifth more", "B_crit", "Seeds that judge"
    rows = [
        [
            f"{verdict.at_examples:,}",
            f"{verdict.length:,}",
            fifth_more_in_words(verdict),
            critical_in_words(verdict),
            f"{verdict.seeds}",
        ]
        for found in content.by_length
        for verdict in found
    ]
    return table(
        "The answer by the length of branches, which is doubled until three in a row agree, or "
        "they are as long as they may be. The last row of each point is the one that counts.",
        [POINT, *heads],
        rows,
    )


def _noise_table(content: BranchContent) -> str:
    rows = []
    for verdict in content.verdicts:
        if (point := content.noise.get(verdict.at_examples)) is not None:
            ratio = ratio_of(point.scale, verdict.critical)
            rows.append(
                [
                    f"{verdict.at_examples:,}",
                    in_words(point.scale) if math.isfinite(point.scale.value) else "not known",
                    critical_in_words(verdict),
                    "not known" if ratio is None else factor_in_words(ratio),
                ]
            )
    return table(
        "The noise scale of the trunk's gradient beside the local critical batch size by branches, "
        "with 90 % intervals, and the ratio of the two. By the theory they are the same: "
        "a ratio of 2 means that the noise scale foretold a batch size twice as large.",
        [POINT, "Noise scale", "B_crit", "Ratio"],
        rows,
    )
