"""Branch files as people write them: a trunk, points of it, and what goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from orchestrator.files.yaml_files import read_yaml
from orchestrator.planning.branch_parts import EARLIEST, LATEST, Branches, Spread
from orchestrator.planning.parts import MANY, FolderName, Part, Text
from orchestrator.planning.sweep import Budget, Checkpoints, Evaluate, Faults, Resources, Sweep
from orchestrator.planning.sweep_file import (
    TRUNK,
    WORKLOADS,
    find_file,
    load_sweep,
    overridden,
    validated,
    validated_as,
)
from orchestrator.records import BadInput, Study
from orchestrator.results import FrontierRow, RunFiles, frontier_of
from orchestrator.results.tables import numbers


class Trunk(Part):
    """A training with one value for each metaparameter, or the winner of a run."""

    run: Text | None = Field(default=None, examples=["runs/quickstart"])
    """The folder of a run, whose winner is the trunk; in place of `optimizer` and its settings. If
    the run has several goals, it is the winner of the goal that took the most steps."""
    workload: FolderName | None = Field(default=None, examples=["digits/mlp"])
    """The workload, as in a sweep file. With `run`, it is needed only if the run has several."""
    recipe: FolderName | None = Field(default=None, examples=["sgd"])
    """With `run`, which of its recipes. It is needed only if the run has several."""
    optimizer: Text | None = Field(default=None, examples=["sgd"])
    """The optimizer, as `optimizer` of a recipe in a sweep file."""
    space: dict[Text, Any] = Field(default={}, examples=[{"only": {"learning_rate": 0.2}}])
    """One value for each metaparameter, as `space` of a recipe."""
    schedule: dict[Text, Any] = Field(default={}, examples=[{"decay": "cosine"}])
    """Warmup and decay of the learning rate, as `schedule` of a recipe. Default: none."""
    batch_size: int = Field(ge=1, le=MANY, examples=[8])
    """The batch size of the trunk, which branches enlarge."""
    budget: Budget | None = Field(default=None, examples=[{"examples": 10000}])
    """How long the trunk trains, as in a sweep file. Default: the workload's own."""

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Trunk:
        described = {"optimizer", "space", "schedule", "budget"} & self.model_fields_set
        if self.run is not None and described:
            raise ValueError(f"the winner of a run has its own {', '.join(sorted(described))}")
        if self.run is None and (self.workload is None or self.optimizer is None):
            raise ValueError("give `workload` and `optimizer`, or the `run` whose winner it is")
        if self.run is None and self.recipe is not None:
            raise ValueError("`recipe` chooses among those of a `run`: give that, or leave it out")
        return self


class TrunkFile(Part):
    """The part of a branch file that comes before its branches."""

    name: Text = Field(examples=["mine"])
    """The name of the run, which is written to `runs/NAME`."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1, examples=[1])
    """The seed of everything that is random."""
    trunk: Trunk
    """The training whose batch size is in question."""


class BranchFile(Branches, TrunkFile):
    """What `orchestrate branch` trains: a trunk, and branches from points of it."""

    evaluate: Evaluate = Evaluate()
    """As in a sweep file."""
    checkpoint: Checkpoints = Checkpoints()
    """As in a sweep file."""
    faults: Faults = Faults()
    """As in a sweep file."""
    resources: Resources = Resources()
    """As in a sweep file."""


FOLDER = Path(__file__).parent.parent / "branches"


def find_branch_file(name: str) -> Path:
    """The file called `name`, or that of this name which comes with the project."""
    return find_file("branch file", name, FOLDER)


def load_branches(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """The trunk's sweep, with what becomes of it."""
    document = overridden(read_yaml(path), overrides)
    if {*document} & {TRUNK, WORKLOADS} == {WORKLOADS}:
        raise BadInput(
            f"{path} describes a sweep: `orchestrate sweep {path}` trains it.", code="wrong-command"
        )
    return _sweep_of(validated_as(BranchFile, document, str(path)), str(path))


def load_either(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """From a sweep file or a branch file."""
    load = load_branches if TRUNK in read_yaml(path) else load_sweep
    return load(path, overrides)


def _sweep_of(file: BranchFile, where: str) -> Sweep:
    trunk, points = file.trunk, file.points
    recipe = trunk.model_dump(include={"optimizer", "space", "schedule", "budget"})
    workload, seed = trunk.workload, None
    if trunk.run is not None:
        run = RunFiles.open(trunk.run)
        row, study = _winner(run, trunk)
        workload, seed = study.workload, row.seed
        recipe = {
            "optimizer": study.optimizer,
            "space": {"only": dict(row.params or {})},
            "budget": {"steps": study.budget_steps},
        }
        if isinstance(points, Spread):
            points = _along(run, row, points)
    common = ("name", "seed", "evaluate", "checkpoint", "faults", "resources")
    return validated(
        {
            **{name: getattr(file, name) for name in common},
            "workloads": [workload],
            "recipes": [{"name": "trunk", **recipe}],
            "batch_sizes": [trunk.batch_size],
            "branch": {
                **{name: getattr(file, name) for name in Branches.model_fields},
                "points": points,
                "trunk_seed": seed,
            },
        },
        where,
    )


def _winner(run: RunFiles, trunk: Trunk) -> tuple[FrontierRow, Study]:
    rows = [
        row
        for row in frontier_of(run)
        if row.reached
        and row.batch_size == trunk.batch_size
        and row.batch_schedule is None
        and row.cooldown is None
        and trunk.workload in (None, row.workload)
        and trunk.recipe in (None, row.recipe)
    ]
    if len(keys := {str(row.key) for row in rows}) != 1:
        raise BadInput(
            f"trunk: one winner of {run.place} at the constant batch size {trunk.batch_size:,}, "
            f"without a cooldown, is needed, but there are: {'; '.join(sorted(keys)) or 'none'}. "
            "Name its `workload` and `recipe`, and a batch size that reached the goal."
        )
    row = max(rows, key=lambda row: row.steps or 0)
    return row, next(study for study in run.studies() if study.key == row.key)


def _along(run: RunFiles, row: FrontierRow, points: Spread) -> list[int]:
    """Steps of the winner, between a part of its steps to the goal and half of them."""
    assert row.trial is not None
    assert row.steps is not None
    step = numbers(run.curve(row.key, row.trial)["step"])
    step = step[(step >= max(EARLIEST * row.steps, 1)) & (step <= LATEST * row.steps)]
    if not len(step):
        raise BadInput(
            f"points: the trunk took {row.steps:,} steps, with no measurement in the first half. "
            f"Write `points: [STEP, ...]`."
        )
    progress = np.log(step)
    levels = np.linspace(progress[0], progress[-1], points.count)
    positions = np.minimum(np.searchsorted(progress, levels), len(step) - 1)
    found: list[int] = np.unique(step[positions]).tolist()
    return found
