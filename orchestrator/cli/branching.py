"""Branches: from a trunk to how large the batch may be along it, and the schedule that follows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import (
    AddressOption,
    DataOption,
    JsonOption,
    RayOption,
    SetOption,
    YesOption,
    print_json,
)
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.analysis import ScheduleStep, Verdict
    from orchestrator.planning.sweep import Sweep
    from orchestrator.records import Study
    from orchestrator.results import Run
    from orchestrator.search import Branching


def branch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A branch file.")],
    out: Annotated[str | None, typer.Option(help="The run folder [runs/NAME].")] = None,
    set_: SetOption = None,
    address: AddressOption = None,
    data_dir: DataOption = None,
    yes: YesOption = False,
    ray: RayOption = True,
    as_json: JsonOption = False,
) -> int:
    """How large the batch may be at points of one training, and the schedule that follows."""
    from orchestrator.cli.runs import run_described
    from orchestrator.cli.training import How
    from orchestrator.planning.branch_file import load_branches

    how = How(address=address, data_dir=data_dir, ray=ray)
    if not file.is_file():
        raise BadInput(f"There is no branch file {file}. docs/branches.md has some to start from.")
    return run_described(load_branches(file, set_ or []), out, how, yes=yes, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a run of branches says so far."""

    queue: Branching[Verdict]
    sweep: Sweep
    studies: Sequence[Study]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """By the longest branches of each point, from the earliest on; those that are known."""
        return [found[-1] for found in self.by_length if found]

    @cached_property
    def by_length(self) -> list[list[Verdict]]:
        """Of each point, from the shortest branches on."""
        return self.queue.judged()

    def schedule(self, end: str) -> list[ScheduleStep]:
        from orchestrator.analysis import schedule_of

        return schedule_of(self.verdicts, end="low" if end == "conservative" else "value")

    def to_json(self) -> dict[str, Any]:
        schedules = {end: self.schedule(end) for end in ENDS} if self.verdicts else {}
        return {
            "complete": self.queue.done,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "by_length": [[each.to_json() for each in some] for some in self.by_length],
            "schedules": {
                end: [asdict(step) for step in steps] for end, steps in schedules.items()
            },
        }


ENDS = ("conservative", "central")
"""Schedules by the lower ends of intervals, and by the values."""


def answer_of(run: Run, sweep: Sweep, studies: Sequence[Study]) -> Answer:
    """What the files of a run tell."""
    queue = queue_of(sweep, studies)
    for study in studies:
        for finished in run.finished(study):
            if finished.outcome.status != "failed":
                queue.load(finished)
    queue.begin()
    return Answer(queue=queue, sweep=sweep, studies=studies)


def queue_of(sweep: Sweep, studies: Sequence[Study]) -> Branching[Verdict]:
    from orchestrator.analysis import BranchJudge
    from orchestrator.planning.branch_plan import points_of, trunk_of
    from orchestrator.search import Branching

    assert sweep.branch is not None
    trunk = trunk_of(sweep, studies)
    judge = BranchJudge(loss=sweep.branch.loss, learning_rate=float(trunk.params["learning_rate"]))
    return Branching(trunk, points_of(sweep, studies), judge, sweep.seed)


def write_up(run: Run, answer: Answer, as_json: bool) -> bool:
    """Prints the verdicts and the schedule, and writes them to the run; whether that worked."""
    from orchestrator.analysis import megatron, steps_saved, verdict_in_words
    from orchestrator.cli.terminal import answer as tell
    from orchestrator.cli.terminal import complain, say
    from orchestrator.results.purpose import to_json

    document = answer.to_json()
    try:
        (run.place / "branches.json").write_text(to_json(document))
    except OSError as error:
        complain(f"The answer can't be written to {run.place}: {error}")
        return False
    if as_json:
        print_json(document)
        return True
    if not answer.verdicts:
        say("No branches have been trained far enough to tell.")
        return True
    for verdict in answer.verdicts:
        tell(verdict_in_words(verdict))
    (trunk,) = (study for study in answer.studies if study.states_at)
    total = trunk.examples(trunk.budget_steps)
    for end in ENDS:
        steps = answer.schedule(end)
        saved = steps_saved(steps, batch_size=trunk.batch_size, total_examples=total)
        tell(f"\n{end.capitalize()} schedule, {saved:.0%} fewer steps for {total:,} examples:")
        tell(f"  examples:batch size  {megatron(steps)}")
    return True
