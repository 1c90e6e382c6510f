"""Published measurements in, ours out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import DONE, RunArgument

SHOWN = 5
"""Problems that are printed; the file has all of them."""


def import_(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The archive's top folder.")],
    out: Annotated[str, typer.Option(help="The run folder to make.")],
) -> int:
    """Make a run from an archive in the layout of Shallue et al."""
    from orchestrator.results import Run, import_archive
    from orchestrator.terminal import counting, say

    run = Run(out)
    with counting("studies") as progress:
        problems = import_archive(source, run, progress)
    trials = [study.trials for study in run.studies()]
    say(f"{len(trials)} studies, {sum(trials):,} trials that count, now in {run.place}")
    if problems:
        say(f"{len(problems)} things in it could not be used ({run.place / 'problems.txt'}):")
        for problem in problems[:SHOWN]:
            print(f"  {problem.path}: {problem.reason}", file=sys.stderr)
    return DONE


def export(
    path: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
) -> int:
    """Write the trials of a run in the layout of Shallue et al."""
    from orchestrator.results import Run, export_archive
    from orchestrator.terminal import counting

    with counting("studies") as progress:
        export_archive(Run.open(path), target, progress)
    print(target)
    return DONE
