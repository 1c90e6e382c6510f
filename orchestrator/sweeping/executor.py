"""What the dispatcher and an executor tell each other: packs, news of packs, and failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the process of the board should load next to nothing
    from pathlib import Path

    from orchestrator.planning.sweep import Resources, Sweep
    from orchestrator.records import FinishedTrial, Study, StudyKey, TrialKey
    from orchestrator.results import RunFiles
    from orchestrator.search import AnySearch, Bounds, Proposal


ERROR_LINES = 20
"""Number of lines that are kept of an error's text: the last ones, which say what was raised and
where."""

LINE_CHARACTERS = 500


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an executor is opened for: to train these studies of a run."""

    run: RunFiles
    sweep: Sweep
    studies: Sequence[Study]
    data_dir: Path | None = None
    asked_to_end: Callable[[], bool] = lambda: False
    """Tells whether the user has asked for the end."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Trials of one study and of one kind, which one process trains, together or one by one."""

    serial: int
    """The identity of this attempt. Trials that are tried again get a pack with another number, so
    late news of an earlier attempt can't be taken for news of this one."""
    proposals: Sequence[Proposal]
    width: int
    """Number of trials that are stacked; 1: each is trained alone."""
    micro_batch: int | None = None
    """A micro-batch that is known to fit into the memory of a device, where a larger one did
    not."""
    to_time: bool = False
    """Whether to time a step without stacking first."""

    @property
    def study(self) -> Study:
        return self.proposals[0].trial.study


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why a pack ended early."""

    text: str
    died: bool = False
    """Whether the pack's process ended or was ended, so that another attempt may succeed. If False,
    the code of a trial raised an exception."""
    machine_lost: bool = False


def last_lines(text: str) -> str:
    """The end of an error's text, shortened, and without characters that can't be stored."""
    lines = text.strip().splitlines()[-ERROR_LINES:]
    shortened = [
        f"{line[:LINE_CHARACTERS]} ..." if len(line) > LINE_CHARACTERS else line for line in lines
    ]
    return "\n".join(shortened).encode(errors="backslashreplace").decode()


@dataclass(frozen=True, kw_only=True)
class News:
    """What has become of a pack since the previous news of it."""

    serial: int
    started: bool = False
    """Whether a process has taken the pack."""
    begun: Sequence[TrialKey] = ()
    """The trials that got a slot."""
    ended: Sequence[FinishedTrial] = ()
    timed: float | None = None
    """Seconds of a step without stacking, if they were asked for."""
    sees_run: bool = True
    """Whether the pack's machine sees the run's folder, where checkpoints are kept."""
    done: bool = False
    """Whether all trials of the pack have ended."""
    failure: Failure | None = None


class Executor(Protocol):
    """Trains packs: in this process, on a Ray cluster, or, in tests, not at all. It decides
    nothing about trials."""

    resources: Resources
    """The sweep's resources, with a value for everything that was left to the machines."""
    data_dir: Path | None
    ranks: int
    """Number of ranks that can train at once."""

    @property
    def has_room(self) -> bool:
        """Whether to hand out another pack now. A waiting pack shows an autoscaler that machines
        are wanted, but its trials were chosen before the results of others are known."""

    def start(self, pack: Pack) -> None:
        """Takes a pack and returns at once."""

    def wait(self) -> Iterable[News]:
        """Waits a moment for news. There may be none."""

    # By default as for an executor that trains one pack at a time, in this process.

    def post(self, key: StudyKey, bounds: Bounds) -> None:
        """Tells all running trials of a study its new bounds."""
        return

    def moved(self) -> Collection[int] | None:
        """The packs that have made a step since the last call; None if that is not known yet."""
        return None

    def leave(self) -> bool:
        """Tells all running trials to save their state and end, since the sweep is to end. Returns
        False where nothing is saved, so that there is no news to wait for."""
        return False

    def end(self, serial: int) -> None:
        """Ends the process that has this pack, which then fails."""
        return

    def why_idle(self) -> str:
        """The reason why nothing may be running, in words."""
        return ""


Listener = Callable[["FinishedTrial", "AnySearch"], None]
"""Is told of trials once they are on disk. The sweep does not need it."""

LAST_WORDS_SECONDS = 10.0
"""Seconds that the process of a trial takes to end itself and to say why."""


def between_looks(hang_seconds: float) -> float:
    """Seconds between two looks at whether a process still makes steps."""
    return min(hang_seconds / 4, 10)
