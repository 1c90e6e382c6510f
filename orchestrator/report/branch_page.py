"""The page of a run of branches: how large the batch may be along one training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.branch_costs import FURTHEST
from orchestrator.analysis.branches import FactorCost, Verdict
from orchestrator.analysis.words import (
    confirmed_in_words,
    in_words,
    schedules_in_words,
    verdict_in_words,
)
from orchestrator.files.places import Place
from orchestrator.files.yaml_files import write_yaml
from orchestrator.report.branch_figure import batch_sizes_along, marks_of, noise_of
from orchestrator.report.gathering import Source
from orchestrator.report.page import Figures, page_of, provenance_of, write_report_of
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
from orchestrator.results import FrontierRow, RunFiles

if TYPE_CHECKING:
    from orchestrator.analysis.branch_answer import Answer  # slow to load, only this page needs it

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


def write_page_of(
    run: RunFiles,
    found: Answer | Sequence[FrontierRow],
    place: Place,
    *,
    reload_seconds: int | None = None,
) -> None:
    """Writes the page of one run, by its answer or its frontier, whole or not at all. While the run
    goes on, browsers reload the page every `reload_seconds` seconds."""
    if isinstance(found, Sequence):
        write_report_of([Source(run=run, rows=found)], place, reload_seconds=reload_seconds)
    else:
        place.write_text(_page(found, reload_seconds))


def _page(answer: Answer, reload_seconds: int | None) -> str:
    show, run = Figures().show, answer.run
    text = _answer(answer, going_on=reload_seconds is not None)
    text += _along(answer, show) + _costs(answer.verdicts) + _schedules(answer.schedules)
    text += provenance_section(provenance_of(run), write_yaml(run.sweep()))
    return page_of(
        f"{lead(escape(_about(answer)))}{contents(text)}{text}",
        title=answer.sweep.name,
        about="how large the batch may be along a training",
        reload_seconds=reload_seconds,
    )


def _about(answer: Answer) -> str:
    trunk = answer.trunk
    factors = ", ".join(f"{factor:,}" for factor in sorted(answer.asked.factors))
    return (
        f"How large may the batch be, and from which example on? The trunk is a training of "
        f"{trunk.workload} with {trunk.optimizer} at batch size {trunk.batch_size:,}. Branches "
        f"continue it from {len(answer.queue.points)} of its points at {factors} times that batch "
        f"size, with several orders of the examples, each at the best of the learning rates tried. "
        f"The cost of a batch size is the ratio of the examples that its branches and the trunk "
        f"need for the same {answer.asked.loss}."
    )


def _answer(answer: Answer, *, going_on: bool) -> str:
    text = _notice(answer) * (not going_on)
    if not answer.verdicts:
        text += "<p>No branches have been trained far enough to tell.</p>"
    problems = [f"After {at:,} examples: {why}" for at, why in answer.queue.problems.items()]
    text += bullets([*map(verdict_in_words, answer.verdicts), *problems])
    if not answer.verdicts:
        return section("answer", "The answer", text)
    lines = schedules_in_words(answer.schedules, answer.trunk.budget_examples)
    lines += map(confirmed_in_words, answer.confirmed)
    text += cards(_card(*one) for one in answer.schedules.items())
    text += bullets(lines) + lead(escape(READING))
    return section("answer", "The answer", text)


def _notice(answer: Answer) -> str:
    if answer.queue.done:
        return ""
    count, known = len(answer.queue.points), len(answer.verdicts)
    return (
        f'<p class="notice">This run is not complete: branches of {known} of {count} points have '
        f"been trained to some length. <code>orchestrate resume</code> goes on with it.</p>"
    )


def _card(name: str, schedule: Mapping[str, Any]) -> tuple[str, str]:
    grown = "".join(
        f", {stage['batch_size']:,} from {stage['examples']:,} examples on"
        for before, stage in pairwise(schedule["stages"])
        if stage["batch_size"] != before["batch_size"]  # not the learning rate alone
    )
    first, saved = schedule["stages"][0]["batch_size"], f"{schedule['steps_saved']:.0%}"
    said = f"<b>{saved}</b> fewer steps<br>batch size {first:,}{grown or ' all along'}"
    return f"{name.capitalize()} schedule", said


def _along(answer: Answer, show: Show) -> str:
    """Shows how large the batch may be, beside what the noise scale forecasts."""
    noise = noise_of(answer)
    series = marks_of(answer, noise)
    if not any(series.values()):
        return ""
    size = answer.trunk.batch_size
    figure = batch_sizes_along(
        series,
        noise,
        answer.schedules,
        trunk=size,
        largest=size * max(answer.asked.factors),
        until=answer.trunk.budget_examples,
    )
    steps = " The stairs are the two schedules." if answer.schedules else ""
    missing = ", ".join(f"{v.at_examples:,}" for v in answer.verdicts if not v.is_known)
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
    return section("along", "How large the batch may be", text)


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


def _costs(verdicts: Sequence[Verdict]) -> str:
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
    text = table(
        "For each batch size, how many times the examples it needs for the loss that the trunk's "
        "own batch size reaches, with 90 % intervals, and its best learning rate, as a multiple of "
        "the trunk's. Below 1, the larger batch needs fewer examples.",
        ["After examples", *(f"Batch size {size:,}" for size in sizes)],
        rows,
    )
    return section("costs", "What larger batches cost", text)


def _ratio(cost: FactorCost, verdict: Verdict) -> str:
    if cost.factor == 1:
        return "1"
    if not verdict.is_known:
        return "not known"
    if cost.examples_ratio.low == math.inf:
        return "never"
    least = 1 / FURTHEST  # smaller ones are not told apart
    return in_words(cost.examples_ratio, lambda e: f"{e:.2f}" if e > least else f"≤ {least:.2f}")
