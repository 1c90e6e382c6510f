"""Branch files as people write them: a trunk, points of it, and what goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from orchestrator.files.yaml_files import read_yaml
from orchestrator.planning.branch_parts import Branches, Length, Rates
from orchestrator.planning.parts import MANY, MOST_ITEMS, MOST_STEPS, FolderName, Part, Text
from orchestrator.planning.sweep import Budget, Checkpoints, Evaluate, Faults, Recipe, Resources, Sweep
from orchestrator.planning.sweep_file import overridden, validated_as
from orchestrator.records import BadInput, Study
from orchestrator.results import FrontierRow, Run, frontier_of

EARLIEST, LATEST = 1 / 64, 1 / 2
"""Of a trunk: between these, points are spread."""


class Trunk(Part):
    """A training with one value for each metaparameter, or the winner of a run."""

    run: Text | None = None
    """Its folder."""
    workload: FolderName | None = None
    recipe: FolderName | None = None
    """Of the run."""
    optimizer: Text | None = None
    space: dict[Text, Any] = Field(default={})
    schedule: dict[Text, Any] = Field(default={})
    batch_size: int = Field(ge=1, le=MANY)
    budget: Budget | None = None

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


class Spread(Part):
    """So many points along the trunk, in equal distances."""

    count: int = Field(ge=1, le=MOST_ITEMS)
    spacing: Literal["log", "loss"] = "log"
    """Equal in the logarithm of examples, or in the loss, where a run tells that."""


class BranchFile(Part):
    name: Text
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    trunk: Trunk
    points: Spread | Annotated[
        list[Annotated[int, Field(ge=1, le=MOST_STEPS)]],
        Field(min_length=1, max_length=MOST_ITEMS),
    ] = Spread(count=3)
    """Or steps of the trunk."""
    factors: list[Annotated[int, Field(ge=1, le=MANY)]] = Field(
        default=[1, 2, 4, 8, 16], min_length=2, max_length=MOST_ITEMS
    )
    learning_rate: Rates = Rates()
    seeds: int = Field(default=6, ge=3, le=1000)
    length: Length = Length()
    loss: Text = "val/loss"
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoints = Checkpoints()
    faults: Faults = Faults()
    resources: Resources = Resources()

    @model_validator(mode="after")
    def _with_a_reference(self) -> BranchFile:
        if 1 not in self.factors:
            raise ValueError("`factors` needs 1, the trunk's own batch size, to compare with")
        return self


def load_branches(path: Path, overrides: Iterable[str] = ()) -> Sweep:
    """The trunk's sweep, with what becomes of it."""
    document = overridden(read_yaml(path), overrides)
    return _sweep_of(validated_as(BranchFile, document, str(path)))


def _sweep_of(file: BranchFile) -> Sweep:
    trunk = file.trunk
    if trunk.run is None:
        study = row = run = None
        recipe: dict[str, Any] = {
            "optimizer": trunk.optimizer, "space": trunk.space, "schedule": trunk.schedule,
            "budget": trunk.budget,
        }  # fmt: skip
        workload = trunk.workload
    else:
        run = Run.open(trunk.run)
        row, study = _winner(run, trunk)
        workload = study.workload
        recipe = {
            "optimizer": study.optimizer,
            "space": {"only": dict(row.params or {})},
            "budget": {"steps": study.budget_steps},
        }
    asked = Branches(
        points=[1],
        factors=file.factors,
        learning_rate=file.learning_rate,
        seeds=file.seeds,
        length=file.length,
        loss=file.loss,
        trunk_seed=None if row is None else row.seed,
    )
    sweep = Sweep(
        name=file.name,
        seed=file.seed,
        workloads=[str(workload)],
        recipes=[Recipe.model_validate({"name": "trunk", **recipe})],
        batch_sizes=[trunk.batch_size],
        evaluate=file.evaluate,
        checkpoint=file.checkpoint,
        faults=file.faults,
        resources=file.resources,
        branch=asked,
    )
    return sweep
