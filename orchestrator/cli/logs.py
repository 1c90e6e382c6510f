"""The command logs: what the programs of a run have printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.options import RunArgument
from orchestrator.cli.terminal import answer
from orchestrator.records import BadInput, escaped, unknown


def logs(
    run: RunArgument,
    trial: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRIAL]",
            help="WORKLOAD/RECIPE/BATCH_SIZE/TRIAL, with -REPEAT behind it for a repeat; the "
            "end of it is enough if no other ends so. Default: list all.",
        ),
    ] = None,
) -> None:
    """Show what the program of a trial has printed, or list the trials of which that is kept."""
    from orchestrator.results import Run

    folder = Run.open(run).logs
    found = {name.removesuffix(".txt"): name for name in folder.names_below()}
    if not found:
        raise BadInput(
            f"{folder} is empty: only programs have logs, and only once they have ended.",
            code="missing-file",
        )
    if trial is None:
        for name in found:
            answer(name)
        return
    fitting = [name for name in found if name == trial or name.endswith(f"/{trial}")]
    if not fitting:
        raise unknown("trial", trial, found)
    if len(fitting) > 1:
        raise BadInput(f"Several trials end so: {', '.join(fitting[:5])}.", code="unknown-name")
    text = (folder / found[fitting[0]]).read().decode(errors="replace")
    sys.stdout.write(escaped(text, but="\n\t"))
