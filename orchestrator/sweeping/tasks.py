"""How every executor trains the trials of a pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from orchestrator.files.places import Place
from orchestrator.records import Study, StudyKey, Trial
from orchestrator.search import PackRace, Proposal
from orchestrator.training import Checkpoint, States, Task


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Makes tasks for a process of proposals. It is the same for all packs of a sweep."""

    studies: Sequence[Study]
    data_dir: Path | None
    checkpoints: Place
    """The folder in which unfinished trials keep their state."""
    checkpoint_seconds: float

    def of(self, proposals: Sequence[Proposal], race: PackRace) -> list[Task]:
        return [
            Task(
                trial=proposal.trial,
                checkpoint=self._checkpoint(proposal.trial),
                ending=partial(race.ending, proposal),
                states=States(
                    folder=self.checkpoints,
                    keep_at=proposal.trial.study.states_at,
                    begin_at=proposal.trial.study.start_step,
                ),
            )
            for proposal in proposals
        ]

    def _checkpoint(self, trial: Trial) -> Checkpoint:
        number = self.numbers[trial.study.key]
        name = f"study-{number:04d}-trial-{trial.index:05d}-{trial.repeat}.pt"
        return Checkpoint(place=self.checkpoints / name, every_seconds=self.checkpoint_seconds)

    @cached_property
    def numbers(self) -> Mapping[StudyKey, int]:
        """Study -> its place in `studies`."""
        return {study.key: number for number, study in enumerate(self.studies)}
