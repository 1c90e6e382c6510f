"""Runs that searched, and those that hold branches of one training instead."""

from __future__ import annotations

from orchestrator.records import BadInput
from orchestrator.results.store import Run


def holds_branches(run: Run) -> bool:
    return run.sweep().get("branch") is not None


def refuse_branches(run: Run) -> None:
    """Before anything is asked that takes searches."""
    if holds_branches(run):
        raise BadInput(
            f"{run.place} holds branches of one training, not searches: they have neither goals "
            f"nor winners. `orchestrate report {run.place}` shows what they say."
        )
