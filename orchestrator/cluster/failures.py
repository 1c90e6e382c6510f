"""Explains why a trial failed, and whether its code or its process was at fault."""

from __future__ import annotations

import re

from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from orchestrator.sweeping.executor import Failure, last_lines


class Failed(Exception):
    """Tells the driver why a pack failed. It takes the place of what was raised, which may not be
    picklable."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.text


def failure_of(error: Exception) -> Failure:
    """The failure behind an error that Tune received for a trial."""
    if isinstance(cause := getattr(error, "cause", None), Failed):
        return cause.failure
    text = last_lines(str(error))
    if isinstance(error, RayActorError):
        died, lost = not error.actor_init_failed, machine_was_lost(error)
        return Failure(text=text, died=died, machine_lost=lost)
    return Failure(text=text)


def machine_was_lost(error: RayActorError) -> bool:
    """Whether a gang ended because its machine was lost. The text of such an error comes from Ray,
    unless it repeats what an actor's code raised when it was created."""
    if error.actor_init_failed:
        return False
    return error.preempted or "node has died" in str(error) or "node died" in str(error)


def as_known(gang: str, error: Exception) -> Exception:
    """The error that ended a gang, given the id of its actor, as one for which Tune ends only its
    trial. For everything else, such as Ray's memory monitor, Tune would end the experiment."""
    if isinstance(error, (RayActorError, RayTaskError)):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OutOfMemoryError):
        said = str(error)
        held = re.search(rf"Actor\({gang}\).*?actual memory used=([\d.]+) ?GB", said, re.DOTALL)
        machine = re.search(r"was ([\d.]+) ?GB / ([\d.]+) ?GB", said)
        of_it = f", which held {held[1]} GB" if held else ""
        in_use = f" ({machine[1]} of {machine[2]} GB were in use)" if machine else ""
        text = (
            f"Ray ended the trial's process{of_it}, because its machine ran out of memory{in_use}. "
            f"Run fewer trials at once (resources.cpus_per_rank: 2 halves their number), spread "
            f"each trial over more machines (resources.examples_per_device), or use machines with "
            f"more memory. RAY_memory_usage_threshold, set before Ray is started, moves the limit."
        )
    return RayActorError(error_msg=text)
