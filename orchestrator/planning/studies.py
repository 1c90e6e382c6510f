"""Derives the studies of a sweep and checks that each can be trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.planning.branch_plan import points_of, with_branches
from orchestrator.planning.cooldowns import cooldown_of, refuse_uncoolable, what_cooldowns_cost
from orchestrator.planning.doubts import of_programs, starving, too_few, without_repeats
from orchestrator.planning.more import refuse_unmatched, with_more
from orchestrator.planning.recipes import (
    ONLY,
    batch_sizes_of,
    batches_of,
    chosen_points,
    scaled_to,
    space_of,
)
from orchestrator.planning.rehearsal import rehearse_all
from orchestrator.planning.sweep import Budget, Recipe, Sweep
from orchestrator.programs.commands import has_seed
from orchestrator.records import (
    BadInput,
    EvaluationGrid,
    Extras,
    Goal,
    Program,
    SearchPlan,
    Study,
    searched,
)
from orchestrator.search import Entry
from orchestrator.workloads import Workload, load_workload, splits_of

MOST_STUDIES, MOST_TRIALS = 2_000, 250_000
"""Largest numbers of studies and trials of a sweep. 1,700 and 168,000 were published."""

TRAINED_PER_EVALUATED = 2
"""Training examples between two evaluations per example evaluated, if the workload gives no number.
Training on one takes three times as long as evaluating it."""

SELDOM = ("train", "test")
"""Splits that not every evaluation looks at."""

NOISE_SCALE: dict[bool | str, Any] = {False: "never", "repeats": "repeats", True: "always"}
"""`evaluate.noise_scale` of a sweep file -> the setting of a study."""

MOST_EVALUATIONS = 1_000_000
"""Largest number of evaluations of a trial. All of them are held in memory until it ends."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep and its studies."""

    sweep: Sweep
    studies: tuple[Study, ...]
    doubts: tuple[str, ...] = ()
    """Sentences about possible problems with these studies, which need not occur."""

    @property
    def remarks(self) -> list[str]:
        """The doubts, and sentences about what is trained besides what was named."""
        besides = []
        for recipe in self.sweep.recipes:
            spaces = [study.space for study in self.studies if study.recipe == recipe.name]
            names = dict.fromkeys(name for space in spaces for name in searched(space))
            rest = [name for name in names if name not in {**recipe.space, **recipe.schedule}]
            if ONLY not in recipe.space and rest:
                besides.append(f"{recipe.name}: {', '.join(rest)}")
        said = (
            f"Searched without being named, in the ranges of `orchestrate spaces`: "
            f"{'; '.join(besides)}. To search only what a recipe names, write `space: {{only: "
            f"{{...}}}}`."
        )
        return [*self.doubts, *what_cooldowns_cost(self.studies), *([said] if besides else [])]


def plan(sweep: Sweep, data_dir: Path | None = None) -> Plan:
    """The studies of `sweep`, in the order in which they are best run."""
    _refuse_repeats("workload", sweep.workloads)
    _refuse_repeats("recipe", [recipe.name for recipe in sweep.recipes])
    _refuse_repeats("goal", sweep.goals)
    studies = tuple(_all_studies(sweep, data_dir))
    if sweep.branch is not None:
        if len(studies) != 1:
            raise BadInput(
                f"branch: a trunk is one training, but this file describes {len(studies)}. Give "
                f"one workload, one recipe and one batch size.",
                code="not-together",
            )
        studies = with_branches(sweep.branch, *studies)
        points_of(sweep, studies)  # raises if no branch from a point fits into the budget
    doubts = (
        *rehearse_all(sweep, studies, data_dir), *starving(studies), *too_few(studies),
        *without_repeats(studies),
        *(of_programs(studies) if sweep.repeats or any(m.repeats for m in sweep.more) else ()),
    )  # fmt: skip
    return Plan(sweep=sweep, studies=studies, doubts=doubts)


def plan_again(sweep: Sweep, studies: Sequence[Study], data_dir: Path | None = None) -> Plan:
    """The plan of a run that exists, with its `studies` as they are, whatever defaults are now:
    grids of evaluations must not mix. Raises `BadInput` if one can't be trained here."""
    for study in studies:
        if study.program is not None:
            continue
        here = splits_of(load_workload(study.workload), data_dir)["train"].size
        if here != study.train_size:
            raise BadInput(
                f"{study.workload} has {here or 'endless'} training examples here, but had "
                f"{study.train_size or 'endless'} when the run was made. Resume it with the code "
                f"and the data that it was made with (--data-dir).",
                code="other-data",
            )
    return Plan(sweep=sweep, studies=tuple(studies), doubts=rehearse_all(sweep, studies, data_dir))


def _all_studies(sweep: Sweep, data_dir: Path | None) -> list[Study]:
    """The studies of all workloads. Raises `BadInput` before too many fill the memory."""
    studies: list[Study] = []
    trials = 0
    for name in sweep.workloads:
        asked = (
            _of_program(sweep, name)
            if name in sweep.programs
            else of_class(sweep, name, load_workload(name), data_dir)
        )
        for study in studies_of(sweep, name, asked):
            refuse_uncoolable(study, branches=sweep.branch is not None)
            studies.append(with_more(study, sweep.more))
            trials += studies[-1].trials + studies[-1].most_repeats
            if len(studies) > MOST_STUDIES or trials > MOST_TRIALS:
                raise BadInput(
                    f"A sweep must have at most {MOST_STUDIES:,} studies and {MOST_TRIALS:,} "
                    f"trials, but this one has {len(studies):,} and {trials:,} or more. Split it.",
                    code="too-many",
                )
    refuse_unmatched(sweep.more, studies)
    return studies


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a class or a program says of its trainings."""

    train_size: int | None
    goals: Sequence[str]
    budget: Budget | None
    """The default."""
    spaces: Sequence[Mapping[str, Entry]]
    """The space of each recipe."""
    grid: Callable[[int, int], EvaluationGrid]
    """The grid of evaluations at a batch size, within so many steps."""
    program: Program | None = None


def _of_program(sweep: Sweep, name: str) -> _Asked:
    entry = sweep.programs[name]
    if not (goals := sweep.goals or ([] if entry.goal is None else [entry.goal])):
        raise BadInput(
            f"{name!r} needs a `goal`, such as 'loss < 3.3', or the sweep `goals`.",
            code="missing-goal",
        )
    for recipe in sweep.recipes:
        _refuse_with_program(sweep, name, recipe)
    # A program reports when it likes. The grid says how soon its next report may come.
    grid = EvaluationGrid(spacing=0, min_gap=entry.every or 1)
    return _Asked(
        train_size=entry.examples,
        goals=goals,
        budget=None,
        spaces=[space_of(recipe, name, None) for recipe in sweep.recipes],
        grid=lambda batch_size, steps: grid,
        program=entry.as_program(),
    )


def _refuse_with_program(sweep: Sweep, name: str, recipe: Recipe) -> None:
    """Raises `BadInput` for settings that only classes can follow."""
    program = sweep.programs[name]
    for what, given in (
        ("`schedule`", recipe.schedule),
        ("`batch_schedule`", recipe.batch_schedule),
        ("branches", sweep.branch),
    ):
        if given:
            raise BadInput(
                f"recipe {recipe.name!r}: {what} can't be used with {name!r}, a program, which has "
                f"its own. Name what it takes in `space`.",
                code="no-effect",
            )
    default = type(sweep.evaluate)()
    if changed := [key for key, value in sweep.evaluate if value != getattr(default, key)]:
        raise BadInput(
            f"evaluate.{changed[0]} has no effect on {name!r}, a program, which decides itself "
            f"when it measures what. If it measures seldom, say so: `every`.",
            code="no-effect",
        )
    budget = _budget(sweep, recipe)
    if budget is None or {*budget.model_dump(exclude_none=True)} <= {"inherit"}:
        raise BadInput(
            f"{name!r} is a program, so the sweep must say how long a trial may train: "
            f"`budget: {{steps: 2000}}`, or in `examples`.",
            code="missing-key",
        )
    if budget.inherit is not None and not program.resumes:
        raise BadInput(
            f"budget.inherit pauses trials, but {name!r} does not say `resumes: true`: each would "
            f"begin anew. Leave one of them out.",
            code="not-together",
        )


def of_class(sweep: Sweep, name: str, workload: Workload, data_dir: Path | None) -> _Asked:
    splits = splits_of(workload, data_dir)
    evaluate = sweep.evaluate
    spacing = workload.evaluation_spacing if evaluate.spacing is None else evaluate.spacing
    min_examples = evaluate.min_examples or workload.evaluation_min_examples
    if min_examples is None:
        evaluated = [data.size or 0 for name, data in splits.items() if name not in SELDOM]
        min_examples = max(1, TRAINED_PER_EVALUATED * sum(evaluated))
    try:
        default = Budget.model_validate(dict(workload.budget))
    except ValidationError as error:
        raise BadInput(f"The budget of workload {name!r}: {error.errors()[0]['msg']}.") from None
    return _Asked(
        train_size=splits["train"].size,
        goals=sweep.goals or [workload.goal],
        budget=default,
        spaces=[space_of(recipe, name, workload) for recipe in sweep.recipes],
        grid=lambda size, steps: _grid(spacing, math.ceil(min_examples / size), steps),
    )


def studies_of(sweep: Sweep, name: str, asked: _Asked) -> Iterator[Study]:
    train_size, evaluate, program = asked.train_size, sweep.evaluate, asked.program
    sizes = batch_sizes_of(sweep.batch_sizes, name, train_size)
    of_recipes = [
        (batches, recipe, space)
        for recipe, space in zip(sweep.recipes, asked.spaces, strict=True)
        for batches in batches_of(recipe, sizes, name, train_size)
    ]
    for batches, recipe, space in sorted(of_recipes, key=lambda part: part[0].largest):
        search = recipe.search or sweep.search
        budget = _budget(sweep, recipe, asked.budget)
        assert budget is not None, "a program without a budget was refused"
        steps = budget.in_steps(batches, name, train_size)
        if (last := batches.stages[-1]).from_step >= steps:
            raise BadInput(
                f"recipe {recipe.name!r}: batch_schedule: batch size {last.batch_size:,} begins at "
                f"step {last.from_step:,}, but the budget ends at {steps:,}. Change one of them.",
                code="no-such-budget",
            )
        if budget.inherit is not None and not sweep.stop.at_goal:
            raise BadInput(
                "budget.inherit ends trials that trail, stop.at_goal: false none. Leave out one.",
                code="not-together",
            )
        scaled = scaled_to(recipe, space, batches.first, batches.examples(steps))
        shared = recipe.search is None and any(map(searched, asked.spaces))
        chosen = chosen_points(recipe, search, scaled, shared=shared)
        yield Study(
            workload=name,
            recipe=recipe.name,
            optimizer=recipe.optimizer,
            batch_size=batches.largest,
            batch_schedule=batches if recipe.batch_schedule else None,
            train_size=train_size,
            goals=tuple(map(Goal.parse, asked.goals)),
            program=program,
            cooldown=cooldown_of(recipe),
            inherit=budget.inherit,
            budget_steps=steps,
            grid=asked.grid(batches.first, steps),
            space=scaled,
            trials=len(chosen) or (search.trials if searched(scaled) else 1),
            search=SearchPlan(
                algorithm="points" if chosen else search.algorithm,
                launches=search.max_launches,
                generation=search.generation,
                points=chosen,
            ),
            repeats=sweep.repeats if program is None or has_seed(program) else 0,
            repeat_best=sweep.repeat_best,
            stop_at_goal=sweep.stop.at_goal,
            repeats_stay=sweep.stop.repeats_stay,
            stop_dominated=(
                sweep.stop.at_goal if sweep.stop.dominated is None else sweep.stop.dominated
            ),
            keep=sweep.stop.keep,
            extras=Extras(
                train_examples=min(evaluate.train_examples, train_size or evaluate.train_examples),
                noise_scale=NOISE_SCALE[evaluate.noise_scale],
                precision=evaluate.precision,
            ),
        )


def _budget(sweep: Sweep, recipe: Recipe, default: Budget | None = None) -> Budget | None:
    given = [each for each in (recipe.budget, sweep.budget, default) if each is not None]
    return reduce(Budget.or_else, given) if given else None


def _grid(spacing: float, min_gap: int, budget_steps: int) -> EvaluationGrid:
    grid = EvaluationGrid(spacing=spacing, min_gap=min_gap)
    if (count := math.floor(grid.most_until(budget_steps))) > MOST_EVALUATIONS:
        raise BadInput(
            f"evaluate: a trial must have at most {MOST_EVALUATIONS:,} evaluations, but with "
            f"spacing {spacing:g} and at least {min_gap:,} steps between them, {budget_steps:,} "
            f"steps have about {count:,}. Give a larger spacing or min_examples.",
            code="too-many",
        )
    return grid


def _refuse_repeats(kind: str, names: list[str]) -> None:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(
            f"Each {kind} must be named once, but {', '.join(repeated)} is given again.",
            code="given-twice",
        )
