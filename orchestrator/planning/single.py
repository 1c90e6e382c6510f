"""Makes a trial outside any sweep, for somebody who wants to see one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.planning.rehearsal import point_at, rehearse_points, rehearse_program
from orchestrator.planning.studies import of_class, plan, studies_of
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import validated
from orchestrator.records import BadInput, Trial, refuse_unknown
from orchestrator.search import check_value
from orchestrator.workloads import load_workload


def single_trial(
    workload: str,
    optimizer: str,
    batch_size: int,
    *,
    params: Mapping[str, Any],
    steps: int | None,
    seed: int,
    evaluate: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    ranks: int = 1,
) -> Trial:
    """A trial outside any sweep, for so many ranks. It trains exactly `steps`, or else until the
    workload's goal or budget. A metaparameter that isn't given takes the middle of its range."""
    document = {
        "name": "trial",
        "seed": seed,
        "workloads": [workload],
        "recipes": [{"name": optimizer, "optimizer": optimizer, "space": dict(params)}],
        "batch_sizes": [batch_size],
        "budget": None if steps is None else {"steps": steps},
        "evaluate": dict(evaluate or {}),
    }
    sweep = validated(document, "orchestrate trial")
    asked = of_class(sweep, workload, load_workload(workload), data_dir)
    (study,) = studies_of(sweep, workload, asked)
    chosen = point_at(study.space, 0.5)
    rehearse_points(study, [chosen], data_dir, ranks=ranks)
    if steps is not None:
        study = replace(study, goals=())
    return Trial(study=study, index=0, seed=seed, params=chosen)


def single_program_trial(
    sweep: Sweep,
    *,
    recipe: str | None,
    batch_size: int | None,
    params: Mapping[str, Any],
    steps: int | None,
    seed: int,
) -> Trial:
    """A trial of the first program of a sweep: of its first recipe, at the batch size in the
    middle, unless others are given."""
    if batch_size is not None:
        sweep = sweep.model_copy(update={"batch_sizes": [batch_size], "more": []})
    studies = [s for s in plan(sweep).studies if s.program is not None]
    if not studies:
        raise BadInput(
            "This file has no program, so name the workload: `orchestrate trial WORKLOAD`.",
            code="wrong-command",
        )
    recipes = list(dict.fromkeys(study.recipe for study in studies))
    recipe = recipes[0] if recipe is None else recipe
    refuse_unknown("recipe", [recipe], recipes)
    of_recipe = [s for s in studies if s.recipe == recipe]
    of_recipe = [s for s in of_recipe if s.workload == of_recipe[0].workload]
    study = of_recipe[len(of_recipe) // 2]
    chosen = point_at(study.space, 0.5)
    refuse_unknown("metaparameter", params, chosen)
    given = {name: check_value(value) for name, value in params.items()}
    study, chosen = replace(study, space={**study.space, **given}), {**chosen, **given}
    if steps is not None:
        study = replace(study, goals=(), budget_steps=steps)
    rehearse_program(study, sweep.resources.ranks(study.batch_size), [chosen])
    return Trial(study=study, index=0, seed=seed, params=chosen)
