"""Published measurements in, ours out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import DONE, RunArgument
from orchestrator.records import BadInput

SHOWN = 5
"""Problems that are printed; the file has all of them."""


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The archive's top folder.")],
    out: Annotated[str, typer.Option(help="The run folder to make.")],
) -> int:
    """Make a run from an archive in the layout of Shallue et al."""
    from orchestrator.cli.terminal import counting, say
    from orchestrator.results import Run, import_archive

    run = Run(out)
    try:
        with counting("studies") as progress:
            problems = import_archive(source, run, progress)
    except OSError as error:
        raise BadInput(
            f"{run.place} can't be written: {error}. The same again goes on where it was."
        ) from None
    trials = [study.trials for study in run.studies()]
    say(f"{len(trials)} studies, {sum(trials):,} trials that count, now in {run.place}")
    if problems:
        say(f"{len(problems)} things in it could not be used ({run.place / 'problems.txt'}):")
        for problem in problems[:SHOWN]:
            say(f"  {problem}")
    return DONE


def export(
    path: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
) -> int:
    """Write the trials of a run in the layout of Shallue et al."""
    from orchestrator.cli.terminal import answer, counting
    from orchestrator.results import Run, export_archive

    with counting("studies") as progress:
        export_archive(Run.open(path), target, progress)
    answer(target)
    return DONE
