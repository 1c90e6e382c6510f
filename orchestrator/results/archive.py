"""Imports an archive, in the layout of the published measurements of Shallue et al., as a run.

[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/study.json
[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/TRIAL/metadata.json and measurements.csv

Trials that were published as COMPLETE count, others don't. Our exports also carry our record, under
the key `orchestrate`, so that an import restores the run as it was. A mistake in a trial loses at
most that trial, a mistake in a study at most that study. Links are not followed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from orchestrator.files.cores import cores
from orchestrator.files.places import Place
from orchestrator.records import BadInput, Study, StudyKey, cut, escaped
from orchestrator.results.archive_documents import (
    LAYOUT,
    OURS,
    own_study,
    published_study,
    read_document,
    trial_row,
)
from orchestrator.results.curve_files import LINK, read_curves, reason_of
from orchestrator.results.provenance import provenance
from orchestrator.results.store import RunFiles
from orchestrator.results.tables import MEASUREMENTS, TRIALS

Job = TypeVar("Job")
Done = TypeVar("Done")

Progress = Callable[[int, int], None]
"""Is called with the number of studies that are done and the total."""

IMPORTED_TRIALS = pa.schema(
    [field.with_nullable(True) for field in TRIALS] + [pa.field("archive_status", pa.string())]
)
IMPORTED_MEASUREMENTS = pa.schema([field.with_nullable(True) for field in MEASUREMENTS])

STUDY = f"study. An archive has folders [GROUP/]{'/'.join(LAYOUT)}, each with a folder per trial"

MOST_LETTERS = 500
"""Largest number of characters in a message about one file."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A part of an archive that could not be used. Its text is always one line."""

    path: str
    reason: str

    @classmethod
    def at(cls, path: str | Path, source: Path, reason: str) -> Problem:
        shortened = escaped(cut(reason, MOST_LETTERS))
        return cls(path=escaped(os.path.relpath(path, source)), reason=shortened)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def import_archive(
    source: Path, run: RunFiles, progress: Progress = lambda done, of: None
) -> list[Problem]:
    """Makes `run` from the archive in `source` and returns the parts that could not be used. If it
    was killed, a second call continues with the missing studies."""
    problems: list[Problem] = []
    known = _known_studies(source, problems)
    refuse_run(run)
    studies = []
    with run.locked():
        jobs = [(run.place, source, folder, study) for folder, study in known]
        for done, (study, its_problems) in enumerate(in_parallel(_import_study, jobs), start=1):
            studies += [] if study is None else [study]
            problems += its_problems
            progress(done, len(jobs))
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
    run: RunFiles, name: str, studies: Sequence[Study], problems: Sequence[Problem], **more: Any
) -> None:
    """Makes a run of imported studies, which are written. Its sweep holds `more`."""
    (run.place / "problems.txt").write_text("".join(f"{each}\n" for each in problems))
    sweep = {"name": name, "imported": True, **more}
    run.create(sweep, studies, {**provenance(), "imported from": name})


def holds_no(what: str, source: object, problems: Sequence[Problem]) -> BadInput:
    """The error for a source that holds nothing that can be used."""
    first = f" The first of {len(problems)} problems: {problems[0]}." if problems else ""
    return BadInput(f"{source} holds no {what}.{first}", code="no-study")


def in_parallel(work: Callable[[Job], Done], jobs: Iterable[Job]) -> Iterator[Done]:
    """Yields the results of the jobs in order. They are done on threads: most of their time goes
    into reading and writing columns, which releases Python's lock."""
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(work, jobs)


def _known_studies(source: Path, problems: list[Problem]) -> list[tuple[Path, Study]]:
    """The studies and their folders, in the order of the exported run if it is known."""
    folders: dict[StudyKey, Path] = {}
    known: list[tuple[int, Study]] = []
    for folder in _study_folders(source, problems):
        try:
            position, study = _read_study(folder, source, problems)
        except Exception as error:
            problems.append(Problem.at(folder, source, reason_of(error)))
            continue
        other = folders.setdefault(study.key, folder)
        if other == folder:
            known.append((position, study))
        else:
            reason = f"{other.relative_to(source)} holds the same study, which is used instead"
            problems.append(Problem.at(folder, source, reason))
    if not known:
        raise holds_no(STUDY, source, problems)
    known.sort(key=lambda read: (read[0], read[1].key))
    return [(folders[study.key], study) for _, study in known]


def _study_folders(source: Path, problems: list[Problem]) -> list[Path]:
    """Folders that hold a study.json, or at least trials."""
    found = set()
    waiting = [(str(source), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                inside = {entry.name: entry for entry in entries}
        except OSError as error:
            problems.append(Problem.at(folder, source, reason_of(error)))
            continue
        is_study = "study.json" in inside
        is_trial = depth > 0 and ("metadata.json" in inside or "measurements.csv" in inside)
        if is_study or is_trial:
            found.add(Path(folder) if is_study else Path(folder).parent)
        # Files with these names may also lie in folders above the studies.
        if depth < len(LAYOUT) or not (is_study or is_trial):
            waiting += [
                (path, depth + 1) for path in _folders_in(inside.values(), source, problems)
            ]
    return sorted(found)


def _folders_in(
    entries: Iterable[os.DirEntry[str]], source: Path, problems: list[Problem]
) -> list[str]:
    folders = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.is_symlink():
            problems.append(Problem.at(entry.path, source, LINK))
        elif entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
    return folders


def _read_study(folder: Path, source: Path, problems: list[Problem]) -> tuple[int, Study]:
    """A study and its position among the studies of its run, if that is known."""
    file, flaws = folder / "study.json", list[str]()
    document: dict[str, Any] = {}
    try:
        document = read_document(str(file))
        if OURS in document:
            return own_study(document[OURS])
    except (OSError, ValueError) as error:
        flaws.append(f"{OURS}: {reason_of(error)}" if document else reason_of(error))
    try:
        return 0, published_study(folder.relative_to(source).parts, document, flaws)
    finally:
        _note(file, source, flaws, problems)


def _note(path: str | Path, source: Path, flaws: Sequence[str], problems: list[Problem]) -> None:
    if flaws:
        problems.append(Problem.at(path, source, "; ".join(flaws)))


def _import_study(job: tuple[Place, Path, Path, Study]) -> tuple[Study | None, list[Problem]]:
    """Brings a study into the run, unless it is there. Returns it with the number of its trials
    that count, or None, and the problems, which are stored with the trials."""
    place, source, folder, study = job
    run = RunFiles(place)
    trials = run.trials(study.key) if run.holds(study.key) else TRIALS.empty_table()
    # An import that was killed may have been of another archive.
    origin = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=16).hexdigest()
    if (trials.schema.metadata or {}).get(b"origin") != origin.encode():
        problems: list[Problem] = []
        try:
            trials, measurements = _read_trials(folder, source, study, problems)
            noted = json.dumps([asdict(problem) for problem in problems])
            notes = {"problems": noted, "origin": origin}
            trials = trials.replace_schema_metadata(notes)
            run.write_study(study.key, trials, measurements)
        except OSError:
            raise  # an error of the run's disk, for which no study may be left out
        except Exception as error:
            return None, [*problems, Problem.at(folder, source, reason_of(error))]
    if not study.trials:
        counted = pc.sum(pc.equal(trials["archive_status"], "COMPLETE")).as_py()
        study = replace(study, trials=counted or 0)
    stored = json.loads((trials.schema.metadata or {}).get(b"problems", b"[]"))
    return study, [Problem(**problem) for problem in stored]


def _read_trials(
    folder: Path, source: Path, study: Study, problems: list[Problem]
) -> tuple[pa.Table, pa.Table]:
    rows: dict[int, dict[str, Any]] = {}
    files: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            folders = _folders_in(entries, source, problems)
    except OSError as error:
        raise ValueError(reason_of(error)) from None
    # Strings are faster than Path objects, and there are hundreds of thousands of them.
    for place in folders:
        flaws: list[str] = []
        try:
            document = read_document(f"{place}/metadata.json")
            row = trial_row(document, os.path.basename(place), study, flaws)
        except (OSError, ValueError) as error:
            problems.append(Problem.at(f"{place}/metadata.json", source, reason_of(error)))
            continue
        _note(f"{place}/metadata.json", source, flaws, problems)
        if row["trial"] in rows:
            problems.append(Problem.at(place, source, f"trial {row['trial']} is there twice"))
            continue
        rows[row["trial"]], files[row["trial"]] = row, f"{place}/measurements.csv"
    curves, lost = read_curves(dict(sorted(files.items())))
    problems += [Problem.at(files[index], source, flaw) for index, flaw in lost.items()]
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
