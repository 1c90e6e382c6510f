"""Tells runs of sweeps, which hold searches, from runs of branches of one training."""

from __future__ import annotations

from orchestrator.records import BadInput
from orchestrator.results.store import Run


def confirmation_of(run: Run) -> Run:
    """The run in which the schedules of a run of branches are confirmed."""
    return Run(run.place / "confirm")


def holds_branches(run: Run) -> bool:
    return run.sweep().get("branch") is not None


def refuse_branches(run: Run) -> None:
    """Raises `BadInput` for a run of branches, where a question needs searches."""
    if holds_branches(run):
        raise BadInput(
            f"{run.place} holds branches of one training, not the searches of a sweep, so it has "
            f"neither goals nor winners. `orchestrate report {run.place}` shows its answer.",
            code="holds-branches",
        )
