"""Explains why a trial failed, and whether its code or its process was at fault."""

from __future__ import annotations

import re
from typing import Any

from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from orchestrator.sweeping.executor import Failure

ERROR_LINES = 20
"""Number of lines that are kept of an error's text: the last ones, which say what was raised and
where."""

LINE_CHARACTERS = 500

OUT_OF_MEMORY = (
    "Ray ended the trial's process{held}, because its machine ran out of memory{machine}. "
    "Run fewer trials at once (resources.cpus_per_rank: 2 halves their number), spread each trial "
    "over more machines (resources.examples_per_device), or use machines with more memory. "
    "RAY_memory_usage_threshold, set before Ray is started, moves the limit."
)


class Raised(Exception):
    """Raised if the code of a trial raised an exception. The message is the end of its traceback,
    since the exception itself may not be picklable. `died` says that the process of a trial was
    ended."""

    def __init__(self, reason: str, *, died: bool = False) -> None:
        super().__init__(reason)
        self.died = died

    def __reduce__(self) -> Any:
        return _raised, (str(self), self.died)


def _raised(reason: str, died: bool) -> Raised:
    return Raised(reason, died=died)


class RankLost(Exception):
    """Raised if the process of another rank has ended, with the reason."""

    def __init__(self, reason: str, *, machine_lost: bool = False) -> None:
        super().__init__(reason)
        self.machine_lost = machine_lost

    def __reduce__(self) -> Any:
        return _rank_lost, (str(self), self.machine_lost)


def _rank_lost(reason: str, machine_lost: bool) -> RankLost:
    return RankLost(reason, machine_lost=machine_lost)


class _GangLost(RayActorError):
    """Stands for the end of a gang for which Ray has no `RayActorError`."""

    def __init__(self, text: str) -> None:
        super().__init__(error_msg=text)


def failure_of(error: Exception) -> Failure:
    """The failure behind an error that Tune received for a trial."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, RankLost):
        text = f"a rank was lost: {last_lines(str(cause))}"
        return Failure(text=text, died=True, machine_lost=cause.machine_lost)
    if isinstance(error, RayActorError):
        died, lost = not error.actor_init_failed, machine_was_lost(error)
        return Failure(text=last_lines(str(error)), died=died, machine_lost=lost)
    if isinstance(cause, Raised):
        return Failure(text=str(cause), died=cause.died, machine_lost=False)
    return Failure(text=last_lines(str(error)), died=False, machine_lost=False)


def machine_was_lost(error: RayActorError) -> bool:
    """Whether a gang ended because its machine was lost. The text of such an error comes from Ray,
    unless it repeats what an actor's code raised when it was created."""
    if error.actor_init_failed:
        return False
    return error.preempted or "node has died" in str(error) or "node died" in str(error)


def last_lines(text: str) -> str:
    """The end of an error's text, shortened, and without characters that can't be stored."""
    lines = text.strip().splitlines()[-ERROR_LINES:]
    shortened = [
        f"{line[:LINE_CHARACTERS]} ..." if len(line) > LINE_CHARACTERS else line for line in lines
    ]
    return "\n".join(shortened).encode(errors="backslashreplace").decode()


def as_known(gang: str, error: Exception) -> Exception:
    """The error that ended a gang, given the id of its actor, as one for which Tune ends only its
    trial. For everything else, such as Ray's memory monitor, Tune would end the experiment."""
    if isinstance(error, (RayActorError, RayTaskError)):
        return error
    return _GangLost(_in_our_words(error, gang))


def _in_our_words(error: Exception, gang: str) -> str:
    if not isinstance(error, OutOfMemoryError):
        return f"{type(error).__name__}: {error}"
    held = re.search(rf"Actor\({gang}\).*?actual memory used=([\d.]+) ?GB", str(error), re.DOTALL)
    machine = re.search(r"was ([\d.]+) ?GB / ([\d.]+) ?GB", str(error))
    return OUT_OF_MEMORY.format(
        held=f", which held {held[1]} GB" if held else "",
        machine=f" ({machine[1]} of {machine[2]} GB were in use)" if machine else "",
    )
