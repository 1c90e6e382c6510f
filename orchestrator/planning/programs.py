"""Checks programs of a sweep before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.planning.sweep import Recipe, Resources, Sweep
from orchestrator.programs.commands import check_command, check_files, has_seed
from orchestrator.programs.starting import Devices, Kept
from orchestrator.records import BadInput, Study
from orchestrator.search import distinct


def refuse_with_program(sweep: Sweep, name: str, recipe: Recipe) -> None:
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
    budget = recipe.budget or sweep.budget
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


def rehearse_program(study: Study, devices: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Raises `BadInput` if the command can't be started, or not with these points."""
    program = study.program
    assert program is not None
    for params in distinct([dict(point) for point in points]):
        check_command(study, devices, params)
    if not program.function:
        check_files(program.command)


def of_programs(studies: Sequence[Study]) -> list[str]:
    """Sentences about programs that a user should know before they are trained."""
    seedless = {s.workload for s in studies if s.program is not None and not has_seed(s.program)}
    return [
        f"The command of {name} has no {{seed}}, so it has no repeats: points are minima, which "
        f"are too low by luck."
        for name in sorted(seedless)
    ]


def devices_of(study: Study, resources: Resources, hang_seconds: float | None = None) -> Devices:
    """What a program may use on one machine, and how it is started there."""
    count = resources.ranks(study.batch_size)
    of_ranks = study.program is not None and study.program.launch == "ranks"
    return Devices(
        count=count,
        starts=(Kept,) * (count if of_ranks else 1),
        threads=resources.cpus_per_rank,
        hang_seconds=hang_seconds,
    )
