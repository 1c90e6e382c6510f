"""How every executor trains the trials of a pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.files.places import Place
from orchestrator.records import Study
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
