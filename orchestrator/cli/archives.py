"""The commands `import` and `export`, for the file layout of published measurements, and for runs
in compact form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import RunArgument
from orchestrator.cli.terminal import answer, counting, say
from orchestrator.records import BadInput

if TYPE_CHECKING:
    from orchestrator.results import Run

SHOWN = 5
"""Number of problems that are printed; the file `problems.txt` has all of them."""


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Top folder of the archive.")],
    out: Annotated[str, typer.Option(help="Folder of the run to make, or s3://BUCKET/FOLDER.")],
) -> None:
    """Make a run from an archive in the layout of Shallue et al."""
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


def export(
    path: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Make a run instead that has the same answers and is small enough to be kept in a "
            "repository: of trials other than the best it holds few measurements.",
        ),
    ] = False,
) -> None:
    """Write the trials of a run in the layout of Shallue et al., or a compact form of the run."""
    from orchestrator.results import Run, export_archive

    run = Run.open(path)
    if compact:
        _export_compact(run, target)
    else:
        with counting("studies") as progress:
            export_archive(run, target, progress)
    answer(target)


def _export_compact(run: Run, target: Path) -> None:
    from orchestrator.results import Run, export_compact, frontier_of, holds_branches
    from orchestrator.sweeping.branch_answer import answer_in

    with counting("studies") as progress:
        export_compact(run, target, progress)
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    say(f"{size / 1e6:,.1f} MB in compact form")
    made = Run(target)
    if holds_branches(made):
        complete = answer_in(made).is_complete
    else:
        complete = all(row.finished for row in frontier_of(made))
    if not complete:
        say(
            f"The run is not complete, so {target} holds what had ended by now. `orchestrate "
            f"resume {target}` trains the rest, and begins trials anew that were paused."
        )
