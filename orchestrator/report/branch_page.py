"""The page of a run of branches: how large the batch may be along one training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestrator.analysis import (
    Verdict,
    confirmed_in_words,
    fifth_more_in_words,
    schedule_in_words,
    verdict_in_words,
)
from orchestrator.files.places import Place
from orchestrator.files.yaml_files import write_yaml
from orchestrator.report import figures
from orchestrator.report.branch_content import BranchContent, series_of, stairs_of
from orchestrator.report.branch_tables import cost_table, length_table, noise_table
from orchestrator.report.page import Figures, check_images, page_of
from orchestrator.report.runs import provenance_of
from orchestrator.report.sections import Show, contents, provenance_section, section
from orchestrator.report.trials import course_of

READING = (
    "A larger batch costs a fifth more where it needs 1.2 times the examples for the loss that the "
    "trunk's own batch reaches. The local critical batch size B_crit is that of the law "
    "c = (1 + kb / B_crit) / (1 + b / B_crit), where c is the cost in examples of k times the "
    "trunk's batch b, fitted to all batch sizes of a point. In brackets, 90 % intervals. The "
    "conservative schedule follows the lower ends of the intervals of what costs a fifth more, the "
    "central one the values themselves, both in powers of two. Learning rates are multiples of the "
    "trunk's."
)

LINES = (
    " Each thin line is the mean over the seeds that judge, of the longest branches at the rate "
    "that was chosen for their batch size: blue is the trunk's own, and the larger ones go "
    "from dark to bright. A larger batch costs more examples where its line lies to the right of "
    "the blue one. A click on a batch size hides its lines."
)

WHAT_A_SCHEDULE_IS = {
    "conservative": "By the lower ends of the 90 % intervals, to be on the safe side.",
    "central": "By the measured values. Where these are too high, it costs more than a fifth more "
    "examples.",
}


def write_branch_report(
    content: BranchContent,
    place: Place,
    *,
    reload_seconds: int | None = None,
    images: tuple[Path, str] | None = None,
) -> None:
    """Writes the page to `place`, whole or not at all; while the run goes on, browsers reload it
    after so many seconds. `images`: a folder for its figures as files, and their format."""
    if images is not None:
        check_images(images[0])
    shown = Figures()
    run = content.run
    parts = [
        _answer(content, going_on=reload_seconds is not None),
        _along(content, shown.show),
        _costs(content, shown.show),
        _schedules(content.schedules),
        provenance_section(provenance_of(run, course_of(run)), write_yaml(run.sweep())),
    ]
    text = "".join(parts)
    page = page_of(
        f'<p class="lead">{escape(_lead(content))}</p>{contents(text)}{text}',
        title=content.sweep.name,
        about="how large the batch may be along a training",
        reload_seconds=reload_seconds,
    )
    place.write_text(page)
    if images is not None:
        shown.save(*images)


def _lead(content: BranchContent) -> str:
    trunk = content.trunk
    factors = ", ".join(f"{factor:,}" for factor in content.factors)
    return (
        f"How large may the batch be, and from when on? A training of {trunk.workload} with "
        f"{trunk.optimizer} at batch size {trunk.batch_size:,}, the trunk, was continued from "
        f"{len(content.points)} of its points at {factors} times that batch size, with "
        f"several orders of the examples, each at the best of the learning rates tried. What "
        f"counts is how many more examples such a branch needs for the same {content.loss}."
    )


def _answer(content: BranchContent, *, going_on: bool) -> str:
    text = _notice(content) * (not going_on)
    if not content.verdicts:
        text += "<p>No branches have been trained far enough to tell.</p>"
    problems = content.queue.problems.items()
    text += _listed(
        [
            *map(verdict_in_words, content.verdicts),
            *(f"After {examples:,} examples: {problem}" for examples, problem in problems),
        ]
    )
    if not content.verdicts:
        return section("answer", "The answer", text)
    lines = [
        schedule_in_words(
            name,
            steps_saved=schedule["steps_saved"],
            total_examples=content.total_examples,
            samples=schedule["samples"],
        )
        for name, schedule in content.schedules.items()
    ]
    lines += [confirmed_in_words(one) for one in content.confirmed]
    text += f'{_cards(content)}{_listed(lines)}<p class="lead">{escape(READING)}</p>'
    return section("answer", "The answer", text)


def _listed(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _notice(content: BranchContent) -> str:
    """Where not all was trained that the run is for."""
    if content.queue.done:
        return ""
    count, known = len(content.points), len(content.verdicts)
    return (
        f'<p class="notice">This run is not complete: branches of {known} of {count} points have '
        f"been trained to some length. <code>orchestrate resume</code> goes on with it.</p>"
    )


def _cards(content: BranchContent) -> str:
    cards = "".join(
        f"<div><dt>{escape(name.capitalize())} schedule</dt>"
        f"<dd><b>{schedule['steps_saved']:.0%}</b> fewer steps<br>"
        f"{escape(_stages_in_words(schedule))}</dd></div>"
        for name, schedule in content.schedules.items()
    )
    return f'<dl class="cards">{cards}</dl>'


def _stages_in_words(schedule: Mapping[str, Any]) -> str:
    first, *later = (stage.split(":") for stage in schedule["samples"].split())
    grown = "".join(
        f", {int(size):,} from {int(examples):,} examples on" for examples, size in later
    )
    return f"batch size {int(first[1]):,}{grown or ' all along'}"


def _along(content: BranchContent, show: Show) -> str:
    """How large the batch may be, beside what the noise scale foretells."""
    series = series_of(content)
    if not any(one.marks for one in series):
        return ""
    size = content.trunk.batch_size
    figure = figures.batch_sizes_along(
        series,
        stairs_of(content.schedules),
        trunk=size,
        largest=size * content.factors[-1],
        until=content.total_examples,
    )
    steps = " Steps are the two schedules." if content.schedules else ""
    text = show(
        figure,
        "Batch sizes along the training",
        _found([verdict for verdict in content.verdicts if verdict.is_known]),
        f"Marks of one point stand side by side, with 90 % intervals.{steps} Dashed is the trunk's "
        f"batch size, and dotted the largest that was measured. A hollow mark is a bound, not a "
        f"value, and an arrow says that the interval goes on beyond it. "
        f"The noise scale is what the gradients of the trunk alone foretell of the local critical "
        f"batch size.{_not_known(content)}",
    )
    text += noise_table(content)
    return section("along", "How large the batch may be", text)


def _found(known: Sequence[Verdict]) -> str:
    if not known:
        return "No batch size is known yet."
    first, last = known[0], known[-1]
    said = (
        f"A fifth more examples takes batch size {fifth_more_in_words(first)} after "
        f"{first.at_examples:,} examples"
    )
    if last is first:
        return f"{said}."
    return f"{said}, and {fifth_more_in_words(last)} after {last.at_examples:,}."


def _not_known(content: BranchContent) -> str:
    missing = [f"{v.at_examples:,}" for v in content.verdicts if not v.is_known]
    return f" Not known, and not drawn: after {', '.join(missing)} examples." if missing else ""


def _costs(content: BranchContent, show: Show) -> str:
    """The branches, and what each batch size costs."""
    text = ""
    if content.trunk_losses:
        text = show(
            figures.trunk_and_branches(
                content.trunk_losses, content.points, content.curves, content.loss
            ),
            f"{content.loss} of the trunk and its branches",
            _falls(content),
            f"Diamonds are the points from which branches go on.{LINES if content.curves else ''}",
        )
    text += cost_table(content.verdicts) + length_table(content)
    return section("costs", "What larger batches cost", text) if text else ""


def _falls(content: BranchContent) -> str:
    (_, first), (examples, last) = content.trunk_losses[0], content.trunk_losses[-1]
    return f"Along the trunk from {first:.3g} to {last:.3g}, after {examples:,} examples."


def _schedules(schedules: Mapping[str, Mapping[str, Any]]) -> str:
    """To copy, for this project and for other trainers."""
    if not schedules:
        return ""
    text = (
        '<p class="lead">Learning rates are multiples of the rate that the trunk has there. The '
        "same are in schedules.yaml, in the folder of the run.</p>"
    )
    for name, schedule in schedules.items():
        text += f"<h3>{escape(name.capitalize())}</h3><p>{WHAT_A_SCHEDULE_IS.get(name, '')}</p>"
        for what, written in (
            ("A recipe for a sweep file", write_yaml({"recipes": [schedule["recipe"]]})),
            ("The stages, by examples", write_yaml(schedule["stages"])),
            (
                "START:BATCH_SIZE in samples, for trainers after Megatron",
                schedule["samples"],
            ),
        ):
            text += f'<h4>{what}</h4><pre tabindex="0">{escape(written)}</pre>'
    return section("schedules", "The schedules, to copy", text)
