"""Imports an archive, in the layout of the published measurements of Shallue et al., as a run.

[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/study.json
[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/TRIAL/metadata.json and measurements.csv

Trials that were published as COMPLETE count, others don't. A mistake in a trial loses at most that
trial, a mistake in a study at most that study. Links to folders are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.records import BadInput, Study, StudyKey, cut, escaped
from orchestrator.results.archive_documents import LAYOUT, published_study, read_document, trial_row
from orchestrator.results.curve_files import read_curves, reason_of
from orchestrator.results.provenance import provenance
from orchestrator.results.store import Progress, RunFiles
from orchestrator.results.tables import MEASUREMENTS, TRIALS

IMPORTED_TRIALS = pa.schema(
    [field.with_nullable(True) for field in TRIALS] + [pa.field("archive_status", pa.string())]
)
IMPORTED_MEASUREMENTS = pa.schema([field.with_nullable(True) for field in MEASUREMENTS])

STUDY = f"study. An archive has folders [GROUP/]{'/'.join(LAYOUT)}, each with a folder per trial"

MOST_LETTERS = 500
"""Largest number of characters in a message about one file."""


def problem_at(path: str | Path, source: Path, reason: str) -> str:
    """A line about a part of a source that could not be used."""
    return f"{escaped(os.path.relpath(path, source))}: {escaped(cut(reason, MOST_LETTERS))}"


def import_archive(
    source: Path, run: RunFiles, progress: Progress = lambda done, of: None
) -> list[str]:
    """Makes `run` from the archive in `source`. Returns a line about each part that could not be
    used."""
    problems: list[str] = []
    known = _known_studies(source, problems)
    refuse_run(run)
    studies = []
    with run.locked():
        for study, its_problems in run.in_parallel(
            partial(_import_study, run, source), known, progress
        ):
            studies += [] if study is None else [study]
            problems += its_problems
        if not studies:
            raise holds_no(STUDY, source, problems)
        complete(run, escaped(source.resolve().name), studies, problems)
    return problems


def refuse_run(run: RunFiles) -> None:
    """Raises `BadInput` if nothing can be imported as this run."""
    if run.exists:
        raise BadInput(f"{run.place} is a run already: give another --out.", code="exists")
    run.check_writable()


def complete(
    run: RunFiles, name: str, studies: Sequence[Study], problems: Sequence[str], **more: Any
) -> None:
    """Makes a run of imported studies, which are written. Its sweep holds `more`."""
    (run.place / "problems.txt").write_text("".join(f"{each}\n" for each in problems))
    sweep = {"name": name, "imported": True, **more}
    run.create(sweep, studies, {**provenance(), "imported from": name})


def holds_no(what: str, source: object, problems: Sequence[str]) -> BadInput:
    """The error for a source that holds nothing that can be used."""
    return BadInput(f"{source} holds no {what}.{first_of(problems)}", code="no-study")


def first_of(problems: Sequence[str]) -> str:
    """The first problem as a sentence that follows another one."""
    return f" The first of {len(problems)} problems: {problems[0].rstrip('.')}." if problems else ""


def _known_studies(source: Path, problems: list[str]) -> list[tuple[Path, Study]]:
    """The studies and their folders."""
    known: dict[StudyKey, tuple[Path, Study]] = {}
    for folder in _study_folders(source, problems):
        try:
            study = _read_study(folder, source, problems)
        except Exception as error:
            problems.append(problem_at(folder, source, reason_of(error)))
            continue
        other, _ = known.setdefault(study.key, (folder, study))
        if other != folder:
            reason = f"{other.relative_to(source)} holds the same study, which is used instead"
            problems.append(problem_at(folder, source, reason))
    if not known:
        raise holds_no(STUDY, source, problems)
    return [known[key] for key in sorted(known)]


def _study_folders(source: Path, problems: list[str]) -> list[Path]:
    """Folders that hold a study.json, or at least trials."""
    found = set()

    def unreadable(error: OSError) -> None:
        problems.append(problem_at(error.filename, source, reason_of(error)))

    for place, inside, files in os.walk(source, onerror=unreadable):
        folder = Path(place)
        depth = len(folder.relative_to(source).parts)
        is_study = "study.json" in files
        is_trial = depth > 0 and ("metadata.json" in files or "measurements.csv" in files)
        if is_study or is_trial:
            found.add(folder if is_study else folder.parent)
            # Files with these names may also lie in folders above the studies.
            if depth >= len(LAYOUT):
                inside.clear()
    return sorted(found)


def _read_study(folder: Path, source: Path, problems: list[str]) -> Study:
    file, flaws = folder / "study.json", list[str]()
    document: dict[str, Any] = {}
    try:
        document = read_document(str(file))
    except (OSError, ValueError) as error:
        flaws.append(reason_of(error))
    try:
        return published_study(folder.relative_to(source).parts, document, flaws)
    finally:
        _note(file, source, flaws, problems)


def _note(path: str | Path, source: Path, flaws: Sequence[str], problems: list[str]) -> None:
    if flaws:
        problems.append(problem_at(path, source, "; ".join(flaws)))


def _import_study(
    run: RunFiles, source: Path, known: tuple[Path, Study]
) -> tuple[Study | None, list[str]]:
    """Brings a study into the run. Returns it with the number of its trials that count, or None,
    and the problems."""
    (folder, study), problems = known, list[str]()
    try:
        trials, measurements = _read_trials(folder, source, study, problems)
        run.write_study(study.key, trials, measurements)
    except OSError:
        raise  # an error of the run's disk, for which no study may be left out
    except Exception as error:
        return None, [*problems, problem_at(folder, source, reason_of(error))]
    counted = pc.sum(pc.equal(trials["archive_status"], "COMPLETE")).as_py()
    return replace(study, trials=counted or 0), problems


def _read_trials(
    folder: Path, source: Path, study: Study, problems: list[str]
) -> tuple[pa.Table, pa.Table]:
    rows: dict[int, dict[str, Any]] = {}
    files: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            folders = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError as error:
        raise ValueError(reason_of(error)) from None
    # Strings are faster than Path objects, and there are hundreds of thousands of them.
    for place in folders:
        flaws: list[str] = []
        try:
            document = read_document(f"{place}/metadata.json")
            row = trial_row(document, os.path.basename(place), study, flaws)
        except (OSError, ValueError) as error:
            problems.append(problem_at(f"{place}/metadata.json", source, reason_of(error)))
            continue
        _note(f"{place}/metadata.json", source, flaws, problems)
        if row["trial"] in rows:
            problems.append(problem_at(place, source, f"trial {row['trial']} is there twice"))
            continue
        rows[row["trial"]], files[row["trial"]] = row, f"{place}/measurements.csv"
    curves, lost = read_curves(dict(sorted(files.items())))
    problems += [problem_at(files[index], source, flaw) for index, flaw in lost.items()]
    for row in rows.values():
        if row["steps"] is None:
            of_trial = curves["step"].filter(pc.equal(curves["trial"], row["trial"]))
            row["steps"] = pc.max(of_trial).as_py() or 0
    trials = [rows[index] for index in sorted(rows)]
    examples = pc.multiply(curves["step"], study.batch_size)
    measurements = pa.concat_tables(
        [IMPORTED_MEASUREMENTS.empty_table(), curves.add_column(2, "examples", examples)],
        promote_options="default",
    )
    return pa.Table.from_pylist(trials, schema=IMPORTED_TRIALS), measurements
