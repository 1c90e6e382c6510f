"""The commands `import`, for published measurements and runs that were trained elsewhere, and
`export`, for runs in compact form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import RunArgument, refuse_both
from orchestrator.cli.terminal import answer, counting, say
from orchestrator.records import BadInput, counted

if TYPE_CHECKING:
    from orchestrator.results import RunFiles

SHOWN = 5
"""Number of problems that are printed; the file `problems.txt` has all of them."""


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A table (CSV, JSON lines, Parquet), a folder of event files, of offline runs of "
            "W&B or of histories, a storage of Optuna, or an archive in the layout of Shallue et "
            "al.",
        ),
    ],
    out: Annotated[
        str | None, typer.Option(help="Folder of the run to make, or s3://BUCKET/FOLDER.")
    ] = None,
    map_: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE",
            help="What the columns of SOURCE mean, in YAML. Keys that it lacks are guessed.",
        ),
    ] = None,
    only_guess: Annotated[
        bool,
        typer.Option(
            "--guess", help="Print instead what the columns are taken to mean, for correction."
        ),
    ] = False,
) -> None:
    """Make a run of runs that were trained elsewhere, or of an archive in the layout of Shallue et
    al."""
    from orchestrator.results import RunFiles
    from orchestrator.results.outside_sources import is_archive

    refuse_both({"guess": only_guess}, {"out": out})
    if out is None and not only_guess:
        raise BadInput("Name the run to make: --out FOLDER.", code="missing-option")
    run = RunFiles("." if out is None else out)
    try:
        if not is_archive(source):
            _import_outside(source, map_, None if only_guess else run)
        elif map_ is not None or only_guess:
            raise BadInput(
                f"{source} is an archive, whose files say what they mean. Leave out --map and "
                f"--guess.",
                code="not-together",
            )
        else:
            _import_archive(Path(source), run)
    except OSError as error:
        raise BadInput(
            f"{run.place} can't be written: {error}. The same command begins the import anew."
        ) from None


def _import_archive(source: Path, run: RunFiles) -> None:
    from orchestrator.results.archive import import_archive

    with counting("studies") as progress:
        problems = import_archive(source, run, progress)
    trials = [study.trials for study in run.studies()]
    count = f"{counted(len(trials), 'study')}, {counted(sum(trials), 'trial')}"
    say(f"{count} that count, now in {run.place}")
    _tell(run, "Parts of the archive that could not be used", problems)


def _import_outside(source: str, map_: Path | None, run: RunFiles | None) -> None:
    """Makes the run, or, without one, prints the mapping."""
    from orchestrator.files.yaml_files import read_yaml
    from orchestrator.results.outside import import_rows
    from orchestrator.results.outside_sources import is_optuna, joined, read_source
    from orchestrator.search.adaptive import trials_in

    written = {} if map_ is None else read_yaml(map_)
    rows = (
        joined(Path(source).stem, trials_in(source), [])
        if is_optuna(source)
        else read_source(source)
    )
    meaning = rows.guess(written)
    if run is None:
        answer(meaning.to_yaml())
        return
    say("What the columns are taken to mean (--guess prints it for a file, --map takes it):")
    for line in meaning.to_yaml().splitlines():
        say(f"  {line}")
    summary = import_rows(rows, meaning, run)
    say(f"{summary}, now in {run.place}")
    _tell(run, "Things that were counted or could not be used", rows.problems)


def _tell(run: RunFiles, what: str, problems: Sequence[str]) -> None:
    if problems:
        say(f"{what}: {len(problems)}, listed in {run.place / 'problems.txt'}.")
        for problem in problems[:SHOWN]:
            say(f"  {problem}")


def export(
    path: RunArgument,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder or file NAME.zip to make.")],
) -> None:
    """Write a run in compact form: it has the same answers and is small enough for a repository. Of
    trials other than the best it holds few measurements."""
    from orchestrator.results import RunFiles
    from orchestrator.results.export import export_compact

    run = RunFiles.open(path)
    with counting("studies") as progress:
        export_compact(run, target, progress)
    answer(target)
