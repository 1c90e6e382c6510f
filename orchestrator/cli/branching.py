"""Prints the answer of a run of branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.options import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.analysis import Confirmed
    from orchestrator.results import Run
    from orchestrator.sweeping.branch_answer import Answer


def print_branches(run: Run, answer: Answer, as_json: bool) -> None:
    from orchestrator.sweeping.branch_answer import document_of

    confirmed = answer.confirmed(run)
    if as_json:
        print_json(document_of(answer, confirmed))
    else:
        _tell(run, answer, confirmed)


def _tell(run: Run, answer: Answer, confirmed: Sequence[Confirmed]) -> None:
    from orchestrator.analysis import confirmed_in_words, schedule_in_words, verdict_in_words
    from orchestrator.cli.terminal import answer as tell
    from orchestrator.cli.terminal import say

    if not answer.verdicts:
        say("No branch has been trained far enough for a verdict.")
    for verdict in answer.verdicts:
        tell(verdict_in_words(verdict))
    for examples, problem in answer.queue.problems.items():
        tell(f"After {examples:,} examples: {problem}")
    for name, schedule in answer.schedules.items():
        said = schedule_in_words(
            name,
            steps_saved=schedule["steps_saved"],
            total_examples=answer.total_examples,
            samples=schedule["samples"],
        )
        tell(said)
    for result in confirmed:
        tell(confirmed_in_words(result))
    if answer.verdicts:
        say(f"Schedules for your trainer, also as recipes: {run.place / 'schedules.yaml'}")
