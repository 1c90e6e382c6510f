"""Explains why a trial failed, and whether its code or its process was at fault."""

from __future__ import annotations

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


def as_known(error: Exception) -> Exception:
    """The error that ended a gang, as one for which Tune ends only its trial. For everything else,
    such as Ray's memory monitor, Tune would end the experiment."""
    if isinstance(error, (RayActorError, RayTaskError)):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OutOfMemoryError):
        text = (
            "Ray ended the trial's process, because its machine ran out of memory. Run fewer "
            "trials at once (resources.cpus_per_rank: 2 halves their number), spread each trial "
            "over more machines (resources.examples_per_device), or use machines with more memory. "
            "RAY_memory_usage_threshold, set before Ray is started, moves the limit."
        )
    return RayActorError(error_msg=text)
