"""How every executor trains a pack, and what it tells of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from orchestrator.files.places import Place
from orchestrator.planning.sweep import Resources
from orchestrator.programs.hearing import ProgramFailed
from orchestrator.programs.starting import Devices
from orchestrator.programs.trials import log_name, train_program, unshared_folder
from orchestrator.records import FinishedTrial, Study, TrialKey
from orchestrator.search import PackRace
from orchestrator.sweeping.executor import Failure, Job, News, Pack, last_lines
from orchestrator.training import Checkpoint, Left, Ranks, States, Task, time_alone, train_pack


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Trains packs. It is the same for all packs of a sweep."""

    studies: Sequence[Study]
    resources: Resources
    data_dir: Path | None
    checkpoints: Place
    """The folder in which unfinished trials keep their state."""
    checkpoint_seconds: float
    logs: Place
    """The folder in which the output of programs is kept."""
    hang_seconds: float | None = None

    @classmethod
    def of(cls, job: Job, resources: Resources, **more: Any) -> Self:
        """The tasks of a job on these resources. `more` are fields of a subclass."""
        return cls(
            studies=job.studies,
            resources=resources,
            data_dir=job.data_dir and job.data_dir.resolve(),
            checkpoints=job.run.checkpoints.absolute(),
            checkpoint_seconds=job.sweep.checkpoint.every_seconds,
            logs=job.run.logs.absolute(),
            hang_seconds=job.sweep.faults.hang_seconds,
            **more,
        )

    def train(
        self,
        pack: Pack,
        race: PackRace,
        ranks: Ranks,
        devices: Devices,
        pulse: Callable[[], None] = lambda: None,
    ) -> Generator[News | None, None, None]:
        """Trains a pack, in this process or by programs. Yields after each measurement; None is no
        news."""
        if pack.to_time:
            seconds = time_alone(pack.proposals[0].trial, ranks, self.data_dir)
            yield News(serial=pack.serial, timed=seconds)
        begun: list[TrialKey] = []
        if pack.study.program is not None:
            (proposal,) = pack.proposals  # since it is not stacked
            trial = proposal.trial
            begun.append(trial.key)
            events = train_program(
                trial, devices, self.checkpoints.local or unshared_folder(self.checkpoints),
                log=self.logs / log_name(trial), ending=partial(race.ending, proposal),
            )  # fmt: skip
        else:
            events = train_pack(
                self.tasks(pack, race), pack.width, ranks,
                micro_batch=pack.micro_batch, data_dir=self.data_dir, pulse=pulse,
                begun=lambda task: begun.append(task.trial.key),
            )  # fmt: skip
        try:
            with closing(events):
                for _, event in events:
                    ended = [event] if isinstance(event, FinishedTrial) else []
                    for finished in ended:
                        race.record(finished)
                    news = News(
                        serial=pack.serial, begun=[*begun], ended=ended, sees_run=self._sees_run
                    )
                    yield news if begun or ended else None
                    begun.clear()
        except (Exception, SystemExit):
            if begun:
                yield News(serial=pack.serial, begun=begun)
            raise
        yield News(serial=pack.serial, done=True)

    def tasks(self, pack: Pack, race: PackRace | None = None) -> list[Task]:
        """The trials of a pack. Ranks other than the first need no race."""
        return [
            Task(
                trial=proposal.trial,
                checkpoint=Checkpoint.of(proposal.trial, self.checkpoints, self.checkpoint_seconds),
                ending=None if race is None else partial(race.ending_or_held, proposal),
                states=States(
                    folder=self.checkpoints,
                    keep_at=pack.study.states_at,
                    begin_at=pack.study.start_step,
                ),
            )
            for proposal in pack.proposals
        ]

    @cached_property
    def _sees_run(self) -> bool:
        return (self.checkpoints.parent / "sweep.yaml").is_file()


def failure_by(error: BaseException) -> Failure:
    """The reason why a pack ended with this error, in a form that can be sent to the driver."""
    if isinstance(error, Left):
        return Failure(text=str(error), died=True, machine_lost=True)
    if isinstance(error, ProgramFailed):
        return Failure(text=str(error), died=error.died)
    return Failure(text=last_lines("".join(traceback.format_exception(error))))
