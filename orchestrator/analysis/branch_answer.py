"""The answer of a run of branches: how large the batch may be along its trunk, and the schedules of
batch sizes that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from orchestrator.analysis.branches import Verdict
from orchestrator.analysis.schedules import (
    BranchJudge,
    Confirmed,
    confirmed,
    megatron,
    schedule_of,
    steps_saved,
)
from orchestrator.files.yaml_files import write_yaml
from orchestrator.planning.branch_parts import TrunkBranches
from orchestrator.planning.branch_plan import points_of, trunk_of
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import validated
from orchestrator.records import Study
from orchestrator.results import RunFiles, confirmation_of
from orchestrator.results.purpose import finite, to_json
from orchestrator.search import Branching


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a run of branches, as far as it is trained."""

    run: RunFiles
    queue: Branching[Verdict]
    sweep: Sweep

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts of the points that have one, in order along the trunk. Each is taken from
        the longest branches of its point."""
        return [found[-1] for found in self.queue.judged() if found]

    @property
    def is_complete(self) -> bool:
        """Whether no branch is missing, and none failed."""
        return self.queue.done and not self.queue.has_failed

    @property
    def asked(self) -> TrunkBranches:
        assert self.sweep.branch is not None
        return self.sweep.branch

    @property
    def trunk(self) -> Study:
        return self.queue.trunk.study

    @cached_property
    def schedules(self) -> dict[str, dict[str, Any]]:
        """Two schedules: `conservative` follows the lower ends of the verdicts' intervals,
        `central` their values. Each is given as a list of stages, in the form of Megatron-style
        trainers, and as a recipe of this project."""
        recipe = self.sweep.recipes[0].model_dump(mode="json", exclude_defaults=True)
        size, whole = self.trunk.batch_size, self.trunk.budget_examples
        found = {}
        for name, end in ENDS.items() if self.verdicts else ():
            steps = schedule_of(self.verdicts, end=end)
            stages = [
                {"examples": s.examples, "batch_size": s.batch_size, "learning_rate": s.rate}
                for s in steps
            ]
            grown = [{"batch_size": steps[0].batch_size}, *map(dict, stages[1:])]
            found[name] = {
                "steps_saved": steps_saved(steps, batch_size=size, total_examples=whole),
                "stages": stages,
                "samples": megatron(steps),
                "recipe": {**recipe, "name": name, "batch_schedule": grown},
            }
        return found

    @property
    def confirming(self) -> Sweep | None:
        """A sweep that trains with each schedule and with the constant batch size, to the end of
        the trunk's budget, with as many seeds as branches have. None if no schedule ever enlarges
        the batch."""
        sweep = self.sweep
        constant = sweep.recipes[0].model_copy(update={"name": CONSTANT})
        recipes = [schedule["recipe"] for schedule in self.schedules.values()]
        growing = [recipe for recipe in recipes if len(recipe["batch_schedule"]) > 1]
        if not growing:
            return None
        return type(sweep).model_validate(
            {
                **sweep.resolved(),
                "name": f"{sweep.name}-confirm",
                "recipes": [constant, *growing],
                "repeats": self.asked.seeds - 1,
                "stop": {"at_goal": False},
                "branch": None,
            }
        )

    @cached_property
    def confirmed(self) -> list[Confirmed]:
        """The results of training with the schedules; empty if that was not done."""
        trained = confirmation_of(self.run)
        if not trained.exists:
            return []
        of_recipe = {s.recipe: [*trained.finished(s)] for s in trained.studies()}
        constant = of_recipe.pop(CONSTANT)
        goals = [goal for finished in constant[:1] for goal in finished.trial.study.goals]
        metrics = [*dict.fromkeys([self.asked.loss, *(goal.metric for goal in goals)])]
        return [
            schedule
            for recipe, trials in of_recipe.items()
            if (schedule := confirmed(recipe, trials, constant, metrics)) is not None
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "complete": self.is_complete,
            "problems": self.queue.problems,
            "verdicts": [*map(asdict, self.verdicts)],
            "by_length": [[*map(asdict, point)] for point in self.queue.judged()],
            "schedules": self.schedules,
            "confirmed": [schedule.to_json() for schedule in self.confirmed],
        }


CONSTANT = "constant"
"""Name of the recipe that keeps the trunk's batch size, beside those of the schedules."""

ENDS: dict[str, Literal["low", "value"]] = {"conservative": "low", "central": "value"}
"""Name of a schedule -> the number of each verdict that it follows: the lower end of its interval,
or its value."""


def answer_in(run: RunFiles) -> Answer:
    """The answer that the files of a run give."""
    sweep, studies = validated(run.sweep(), f"{run.place} (studies.json)"), run.studies()
    queue = branching_of(sweep, studies)
    for study in studies:
        for finished in run.finished(study):
            queue.load(finished)  # failed trials, too: an answer does not wait for another attempt
    queue.begin()
    return Answer(run=run, queue=queue, sweep=sweep)


def branching_of(sweep: Sweep, studies: Sequence[Study]) -> Branching[Verdict]:
    assert sweep.branch is not None
    trunk = trunk_of(sweep, studies)
    judge = BranchJudge(loss=sweep.branch.loss, learning_rate=float(trunk.params["learning_rate"]))
    return Branching(trunk, points_of(sweep, studies), judge, sweep.seed)


def write_branches(answer: Answer) -> None:
    """Writes the verdicts and the schedules into the run's folder."""
    place = answer.run.place
    (place / "branches.json").write_text(to_json(finite(answer.to_json())))
    (place / "schedules.yaml").write_text(write_yaml(answer.schedules))
