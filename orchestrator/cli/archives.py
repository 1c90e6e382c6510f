"""The commands `import` and `export`, for the file layout of published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import DONE, RunArgument
from orchestrator.records import BadInput

SHOWN = 5
"""Number of problems that are printed; the file `problems.txt` has all of them."""


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Top folder of the archive.")],
    out: Annotated[str, typer.Option(help="Folder of the run to make, or s3://BUCKET/FOLDER.")],
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
            f"{run.place} can't be written: {error}. The same command continues the import."
        ) from None
    trials = [study.trials for study in run.studies()]
    say(f"{len(trials)} studies, {sum(trials):,} trials that count, now in {run.place}")
    if problems:
        say(
            f"{len(problems)} parts of the archive could not be used, listed in "
            f"{run.place / 'problems.txt'}:"
        )
        for problem in problems[:SHOWN]:
            say(f"  {problem}")
    return DONE


def export(
    path: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
) -> int:
    """Write the trials of a run in the layout of Shallue et al."""
    from orchestrator.cli.terminal import answer, counting
    from orchestrator.results import Run, export_archive

    with counting("studies") as progress:
        export_archive(Run.open(path), target, progress)
    answer(target)
    return DONE
