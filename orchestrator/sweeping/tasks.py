"""How every executor trains the trials of a pack."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.files.places import Place
from orchestrator.programs.starting import Devices
from orchestrator.programs.trials import (
    Commission,
    log_name,
    train_programs,
    unshared_folder,
)
from orchestrator.records import FinishedTrial, Measurement, Study, Trial, TrialKey
from orchestrator.search import PackRace, Proposal
from orchestrator.training import Checkpoint, Ranks, States, Task, train_pack


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Makes tasks for a process of proposals. It is the same for all packs of a sweep."""

    studies: Sequence[Study]
    data_dir: Path | None
    checkpoints: Place
    """The folder in which unfinished trials keep their state."""
    checkpoint_seconds: float
    logs: Place
    """The folder in which the output of programs is kept."""
    hang_seconds: float | None = None

    def train(
        self,
        tasks: Sequence[Task],
        width: int,
        ranks: Ranks,
        devices: Devices,
        *,
        micro_batch: int | None,
        begun: Callable[[TrialKey], None],
        pulse: Callable[[], None] = lambda: None,
    ) -> Generator[tuple[Trial, Measurement | FinishedTrial | None], None, None]:
        """Trains the tasks of a pack, in this process or by a program. None is no news."""
        if tasks[0].trial.study.program is not None:
            local = self.checkpoints.local or unshared_folder()
            commissions = [
                Commission(
                    trial=task.trial,
                    folder=local,
                    log=self.logs / log_name(task.trial),
                    ending=task.ending,
                )
                for task in tasks
            ]
            return train_programs(commissions, devices, lambda trial: begun(trial.key))
        return train_pack(
            tasks, width, ranks, micro_batch=micro_batch, data_dir=self.data_dir, pulse=pulse,
            begun=lambda task: begun(task.trial.key),
        )  # fmt: skip

    def of(self, proposals: Sequence[Proposal], race: PackRace) -> list[Task]:
        return [
            Task(
                trial=proposal.trial,
                checkpoint=Checkpoint.of(proposal.trial, self.checkpoints, self.checkpoint_seconds),
                ending=partial(race.ending, proposal),
                states=States(
                    folder=self.checkpoints,
                    keep_at=proposal.trial.study.states_at,
                    begin_at=proposal.trial.study.start_step,
                ),
            )
            for proposal in proposals
        ]
