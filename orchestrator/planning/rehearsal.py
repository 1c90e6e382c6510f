"""Tries out each study of a plan on two examples, before machines are paid for."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path

from torch import nn

from orchestrator.planning.doubts import small_ghosts
from orchestrator.planning.sweep import Sweep
from orchestrator.programs.commands import check_command, check_files
from orchestrator.records import (
    Choice,
    Space,
    Study,
    Trial,
    Value,
    mistakes_in,
    refuse_unknown,
    searched,
    wrong_value,
)
from orchestrator.search import assemble, distinct
from orchestrator.training import MADE, one_thread, rehearse
from orchestrator.workloads import Workload
from orchestrator.workloads.ghost_batch_norm import ghost_size_of

REHEARSED = 50
"""Largest number of listed points per study that are tried out before a sweep starts."""


class Made(dict[tuple[object, ...], tuple[nn.Module, list[nn.Module]]]):
    """The models that were made to try out trials, with their frozen layers. Making a model of a
    billion weights takes long, so it is made once for all points."""

    def reused_by(self, trial: Trial, workload: Workload) -> Workload:
        """Returns the workload with a `model` that returns the model of an earlier trial."""
        same = trial.params.get("precision"), trial.params.get("compile")
        key, reusing = (trial.study.workload, *same), copy(workload)

        def model() -> nn.Module:
            if key not in self:
                new = workload.model()
                if not isinstance(new, nn.Module):
                    raise wrong_value("What `model` returns", "a torch.nn.Module", new)
                self[key] = new, [module for module in new.modules() if not module.training]
            else:
                MADE.difference_update(self[key][0].modules())
            known, frozen = self[key]
            known.train()
            for module in frozen:
                module.training = False
            return known

        object.__setattr__(reusing, "model", model)  # it may be a frozen dataclass
        return reusing


def rehearse_all(sweep: Sweep, studies: Sequence[Study], data_dir: Path | None) -> tuple[str, ...]:
    """Raises `BadInput` for studies that can't be trained or measured. Returns doubts."""
    doubts: list[str] = []
    for name in sweep.workloads:
        known, made = len(doubts), Made()
        of_workload = [study for study in studies if study.workload == name]
        if name in sweep.programs:
            for study in of_workload:
                rehearse_program(study, sweep.resources.ranks(study.batch_size), _points(study))
            continue
        # A scaling rule gives its most extreme values at the smallest and largest batch size.
        first = {study.recipe: study for study in reversed(of_workload)}
        last = {study.recipe: study for study in of_workload}
        ends = {study.key: study for study in [*first.values(), *last.values()]}
        for study in ends.values():
            compared = [sweep.branch.loss] if sweep.branch else []
            ranks = sweep.resources.ranks(study.batch_size)
            doubts += rehearse_points(study, _points(study), data_dir, compared, ranks, made)
        models = [model for model, _ in made.values()]
        if len(doubts) == known and models and (size := ghost_size_of(models.pop)):
            doubts += small_ghosts(name, size, [study.batches.first for study in of_workload])
    return tuple(dict.fromkeys(doubts))


def rehearse_points(
    study: Study,
    points: Iterable[Mapping[str, Value]],
    data_dir: Path | None,
    compared: Sequence[str] = (),
    ranks: int = 1,
    made: Made | None = None,
) -> list[str]:
    """Raises `BadInput` if a point can't be trained or measured, or if a metric of a goal or one in
    `compared` is not measured. Returns sentences about problems that may occur."""
    doubts, made = [], Made() if made is None else made
    for params in points:
        with mistakes_in(f"recipe {study.recipe!r}"), one_thread():
            trial = Trial(study=study, index=0, seed=0, params=params)
            metrics = rehearse(trial, data_dir, count=ranks, changed=partial(made.reused_by, trial))
        if isinstance(metrics, Exception):
            doubts.append(_doubt(study, metrics))
            continue
        needed = [*(goal.metric for goal in study.goals), *compared]
        where = f"workload {study.workload!r} with recipe {study.recipe!r}"
        if "/ema_" in str(needed) and "ema_decay" not in params:
            where += ", which has no `ema_decay` in its `space`"
        refuse_unknown(f"metric of {where}:", needed, metrics)
    return doubts


def rehearse_program(study: Study, devices: int, points: Sequence[Mapping[str, Value]]) -> None:
    """Raises `BadInput` if the command can't be started, or not with these points."""
    program = study.the_program
    for params in distinct([dict(point) for point in points]):
        check_command(study, devices, params)
    if not program.function:
        check_files(program.command)


def _doubt(study: Study, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if "site-packages" not in f.filename), frames[-1])
    reason = "".join(traceback.format_exception_only(error)).strip()
    return (
        f"{study.workload}, tried with two examples on this machine, raised {reason} "
        f"({last.filename}:{last.lineno}). The trials will show whether it always does."
    )


def _points(study: Study) -> Sequence[Mapping[str, Value]]:
    """The points to try out: the first of those that are listed, else the ends and the middle of
    each range, each option of each choice."""
    choices = [len(entry.options) for entry in study.space.values() if isinstance(entry, Choice)]
    last = max([3, *choices]) - 1
    spread = distinct(point_at(study.space, number / last) for number in range(last + 1))
    return study.search.points[:REHEARSED] or spread


def point_at(space: Space, fraction: float) -> dict[str, Value]:
    """The point that lies `fraction` of the way through every range, on its scale."""
    return assemble(space, [fraction] * len(searched(space)))
