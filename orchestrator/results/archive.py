"""The layout in which the measurements of Shallue et al. were published, in and out.

[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/study.json
[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE/TRIAL/metadata.json and measurements.csv

Of trials that were published as COMPLETE all count, of the others none. What we export carries our
own record beside theirs, under `orchestrate`, so that it comes back as it was.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from orchestrator.records import (
    BadInput,
    Choice,
    EvaluationGrid,
    Range,
    Scale,
    Space,
    Status,
    Study,
    StudyKey,
)
from orchestrator.results.provenance import provenance
from orchestrator.results.store import (
    MEASUREMENTS,
    TRIALS,
    Run,
    numbers,
    of_trial,
    study_from,
    write_text,
)

STATUS_IN: dict[str, Status] = {
    "COMPLETE": "exhausted",
    "INFEASIBLE": "diverged",
    "INCOMPLETE": "failed",
}
STATUS_OUT: dict[Status, str] = {
    "reached": "COMPLETE",
    "exhausted": "COMPLETE",
    "diverged": "INFEASIBLE",
    "dominated": "INCOMPLETE",
    "failed": "INCOMPLETE",
}
SCALES: dict[str, Scale] = {
    "LINEAR_SCALE": "linear",
    "LOG_SCALE": "log",
    "REVERSE_LOG_SCALE": "reverse_log",
}

OURS = "orchestrate"
"""The key of our own record in their JSON."""

IMPORTED_TRIALS = pa.schema(
    [field.with_nullable(True) for field in TRIALS] + [pa.field("archive_status", pa.string())]
)
IMPORTED_MEASUREMENTS = pa.schema([field.with_nullable(True) for field in MEASUREMENTS])

PARALLEL_FROM = 8
"""Studies; for fewer, other processes take longer to start than to help."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in an archive that could not be used."""

    path: str
    reason: str


def import_archive(
    source: Path, run: Run, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[Problem]:
    """Makes `run` from the archive in `source`; returns what could not be used. Killed and called
    again, it goes on with the studies that are missing. `progress` hears of studies done."""
    if run.exists:
        raise BadInput(f"{run.path} is a run already. Name another folder with --out.")
    problems: list[Problem] = []
    folders: dict[StudyKey, Path] = {}
    known: list[tuple[int, Study]] = []
    for folder in _study_folders(source):
        read = _read_study(folder, source, problems)
        if read is None:
            continue
        other = folders.setdefault(read[1].key, folder)
        if other == folder:
            known.append(read)
        else:
            problems.append(_problem(folder, source, f"{other} holds the same study"))
    known.sort(key=lambda read: (read[0], read[1].key))
    if not known:
        raise BadInput(
            f"{source} holds no study. An archive has folders "
            f"[GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE, each with one folder per trial."
        )
    studies = []
    run.check_writable()
    with run.locked():
        jobs = [(run.path, source, folders[study.key], study) for _, study in known]
        for done, (study, its_problems) in enumerate(_in_parallel(jobs), start=1):
            studies.append(study)
            problems += its_problems
            progress(done, len(jobs))
        _write_problems(run, problems)
        name = source.resolve().name
        run.create(
            {"name": name, "imported": True}, studies, {**provenance(), "imported from": name}
        )
    return problems


def _in_parallel(
    jobs: Sequence[tuple[Path, Path, Path, Study]],
) -> Iterator[tuple[Study, list[Problem]]]:
    if len(jobs) < PARALLEL_FROM:
        yield from map(_import_study, jobs)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        yield from pool.map(_import_study, jobs, chunksize=1)


def _study_folders(source: Path) -> list[Path]:
    """Folders with a study.json, or with trials at least."""
    found = set()
    for place, folders, files in os.walk(source):
        if "study.json" in files:
            found.add(Path(place))
            folders.clear()
        elif "metadata.json" in files or "measurements.csv" in files:
            found.add(Path(place).parent)
            folders.clear()
    return sorted(found)


def _read_study(folder: Path, source: Path, problems: list[Problem]) -> tuple[int, Study] | None:
    """A study and its place among those of its run, as far as that is known."""
    parts = folder.relative_to(source).parts
    described: Mapping[str, Any] = {}
    try:
        described = _read_json(folder / "study.json")
        if OURS in described:
            ours = dict(described[OURS])
            return ours.pop("place"), study_from(ours)
    except (OSError, ValueError, TypeError, KeyError) as error:
        problems.append(_problem(folder / "study.json", source, _reason(error)))
    try:
        *workload, optimizer, batch_size = parts
        assert len(workload) >= 2
        size = int(batch_size)
        assert size >= 1
    except (ValueError, AssertionError):
        problems.append(
            _problem(folder, source, "is not at [GROUP/]DATASET/MODEL/OPTIMIZER/BATCH_SIZE")
        )
        return None
    if described.get("batch_size", size) != size:
        reason = f"has batch_size {described['batch_size']}, but lies under {size}, which is taken"
        problems.append(_problem(folder / "study.json", source, reason))
    space: dict[str, Any] = {}
    for name, entry in _mapping(described.get("parameter_configs")).items():
        try:
            space[name] = _space_entry(entry)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"parameter {name!r}: {_reason(error)}"
            problems.append(_problem(folder / "study.json", source, reason))
    steps = described.get("train_steps")
    return 0, Study(
        workload="/".join(workload),
        recipe=optimizer,
        optimizer=optimizer,
        batch_size=size,
        goals=(),
        budget_steps=steps if isinstance(steps, int) else 0,
        grid=EvaluationGrid(spacing=0, min_gap=1),
        space=space,
        trials=0,
        stop_at_goal=bool(described.get("early_stopping")),
        stop_dominated=False,
    )


def _space_entry(entry: Mapping[str, Any]) -> Range | Choice:
    if entry["type"] == "DISCRETE":
        return Choice(options=tuple(entry["feasible_points"]))
    return Range(
        low=float(entry["min_value"]),
        high=float(entry["max_value"]),
        scale=SCALES[entry["scale"]],
        integer=entry["type"] == "INTEGER",
    )


def _import_study(job: tuple[Path, Path, Path, Study]) -> tuple[Study, list[Problem]]:
    """Brings a study into the run, if it isn't there yet; the study with the number of trials that
    count, and the problems there were, which are kept with the trials."""
    path, source, folder, study = job
    run = Run(path)
    if not run.holds(study.key):
        problems: list[Problem] = []
        trials, measurements = _read_trials(folder, source, study, problems)
        notes = {"problems": json.dumps([asdict(problem) for problem in problems])}
        run.write_study(study.key, trials.replace_schema_metadata(notes), measurements)
    trials = run.trials(study.key)
    if not study.trials:
        counted = pc.sum(pc.equal(trials["archive_status"], "COMPLETE")).as_py()
        study = replace(study, trials=counted or 0)
    kept = json.loads((trials.schema.metadata or {}).get(b"problems", b"[]"))
    return study, [Problem(**problem) for problem in kept]


def _read_trials(
    folder: Path, source: Path, study: Study, problems: list[Problem]
) -> tuple[pa.Table, pa.Table]:
    rows: dict[int, dict[str, Any]] = {}
    files: dict[int, Path] = {}
    with os.scandir(folder) as entries:
        places = sorted(folder / entry.name for entry in entries if entry.is_dir())
    for place in places:
        try:
            row = _read_metadata(_read_json(place / "metadata.json"), place.name, study)
        except (OSError, ValueError, TypeError, KeyError) as error:
            problems.append(_problem(place / "metadata.json", source, _reason(error)))
            continue
        if row["trial"] in rows:
            problems.append(_problem(place, source, f"trial {row['trial']} is there twice"))
            continue
        rows[row["trial"]], files[row["trial"]] = row, place / "measurements.csv"
    curves, flaws = _read_curves({index: files[index] for index in sorted(files)})
    problems += [_problem(files[index], source, flaw) for index, flaw in flaws.items()]
    for row in rows.values():
        if row["steps"] is None:
            mine = curves["step"].filter(pc.equal(curves["trial"], row["trial"]))
            row["steps"] = pc.max(mine).as_py() or 0
    trials = [rows[index] for index in sorted(rows)]
    examples = pc.multiply(curves["step"], study.batch_size)
    measurements = pa.concat_tables(
        [IMPORTED_MEASUREMENTS.empty_table(), curves.add_column(2, "examples", examples)],
        promote_options="default",
    )
    return pa.Table.from_pylist(trials, schema=IMPORTED_TRIALS), measurements


def _read_curves(files: Mapping[int, Path]) -> tuple[pa.Table, dict[int, str]]:
    """The measurements of all trials, in their order, and what was wrong with which.

    Files with the same columns are read as one: most of the time would go into beginning anew.
    """
    alike: dict[bytes, list[tuple[int, bytes]]] = {}
    one_by_one: list[int] = []
    for index, path in files.items():
        try:
            header, _, body = path.read_bytes().partition(b"\n")
        except OSError:
            one_by_one.append(index)
            continue
        alike.setdefault(header.rstrip(b"\r"), []).append((index, body))
    tables = [_with_trial(pa.array([], pa.int32()), _no_curve())]
    for header, bodies in alike.items():
        table = _read_alike(header, bodies)
        if table is None:
            one_by_one += [index for index, _ in bodies]
        else:
            tables.append(table)
    flaws = {}
    for index in one_by_one:
        curve, its_flaws = read_curve(files[index])
        tables.append(_with_trial(pa.array([index] * len(curve), pa.int32()), curve))
        if its_flaws:
            flaws[index] = "; ".join(its_flaws)
    table = pa.concat_tables(tables, promote_options="default")
    if len(tables) > 2:  # the empty one and another
        table = table.take(np.argsort(numbers(table["trial"]), kind="stable"))
    return table, dict(sorted(flaws.items()))


def _read_alike(header: bytes, bodies: Sequence[tuple[int, bytes]]) -> pa.Table | None:
    """Many files as one; None where that takes a closer look at each."""
    names = header.decode(errors="replace").split(",")
    if not _is_plain(names):
        return None
    ended = [body if body.endswith(b"\n") or not body else body + b"\n" for _, body in bodies]
    try:
        curve = _parse(pa.BufferReader(b"".join([header, b"\n", *ended])), names)
    except pa.ArrowInvalid:
        return None
    lines = [body.count(b"\n") for body in ended]
    if len(curve) != sum(lines) or curve["step"].null_count:
        return None
    return _with_trial(pa.array(np.repeat([i for i, _ in bodies], lines), pa.int32()), curve)


def _with_trial(trial: pa.Array, curve: pa.Table) -> pa.Table:
    return curve.add_column(0, "trial", trial)


def _is_plain(names: Sequence[str]) -> bool:
    """Whether all columns are known kinds of numbers, and all that is needed is there."""
    return "step" in names and len(set(names)) == len(names) == len(_used(names))


def _parse(source: Any, names: Sequence[str]) -> pa.Table:
    """Columns of numbers, `step` first; whatever else is in there raises."""
    types = {name: pa.int64() if name == "step" else pa.float64() for name in names}
    table = pa_csv.read_csv(
        source,
        read_options=pa_csv.ReadOptions(use_threads=False),
        convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
    )
    return table.select(["step", *(name for name in names if name != "step")])


def _read_metadata(metadata: Mapping[str, Any], name: str, study: Study) -> dict[str, Any]:
    ours = metadata.get(OURS)
    if ours is not None:
        return {**ours, "params": json.dumps(ours["params"]), "archive_status": None}
    status = metadata["status"]
    if status not in STATUS_IN:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUS_IN)}")
    steps = metadata.get("steps")
    return {
        "trial": int(metadata.get("trial_id", name)),
        "optimizer": study.optimizer,
        "status": STATUS_IN[status],
        "steps": None if steps is None else int(steps),
        "params": json.dumps(_mapping(metadata.get("parameters"))),
        "error": "INCOMPLETE in the archive" if status == "INCOMPLETE" else None,
        "archive_status": status,
    }


def read_curve(path: Path) -> tuple[pa.Table, list[str]]:
    """The measurements in a CSV file: `step`, `seconds` if there, and a float64 column for each
    metric; in their order in the file. And what in it could not be used."""
    try:
        with path.open("rb") as file:
            names = file.readline().decode().strip("\r\n").split(",")
        if _is_plain(names) and not (curve := _parse(path, names))["step"].null_count:
            return curve, []
    except OSError as error:
        return _no_curve(), [_reason(error)]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    return _read_flawed(path)


def _used(names: Iterable[str]) -> list[str]:
    return [name for name in names if "/" in name or name in ("step", "seconds")]


def _no_curve() -> pa.Table:
    return pa.table({"step": pa.array([], pa.int64())})


def _read_flawed(path: Path) -> tuple[pa.Table, list[str]]:
    """The same, cell by cell: whatever is a number is kept."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = csv.reader(line.replace("\0", "") for line in file)
        try:
            names = next(lines, [])
            rows = [row for row in lines if row]
        except csv.Error as error:
            return _no_curve(), [_reason(error)]
    flaws = []
    if not names:
        return _no_curve(), ["is empty"]
    if "step" not in names:
        return _no_curve(), ["has no column `step`"]
    used = list(dict.fromkeys(_used(names)))
    unused = [name for name in dict.fromkeys(names) if name not in used]
    if unused:
        flaws.append(f"columns that are no split/metric: {', '.join(map(repr, unused))}")
    if repeated := sorted({name for name in used if names.count(name) > 1}):
        flaws.append(f"columns there twice, the first is taken: {', '.join(map(repr, repeated))}")
    places = [names.index(name) for name in used]
    columns: dict[str, list[Any]] = {name: [] for name in used}
    junk, lost = 0, 0
    for row in rows:
        step = _number(row[places[used.index("step")]] if len(row) > names.index("step") else "")
        if step is None or not step.is_integer() or abs(step) > 2**62:
            lost += 1
            continue
        for name, place in zip(used, places, strict=True):
            cell = row[place] if place < len(row) else ""
            number = _number(cell)
            junk += number is None and bool(cell.strip())
            columns[name].append(int(step) if name == "step" else number)
        junk += len(row) > len(names)
    if lost:
        flaws.append(f"{lost} rows have no whole number as their step")
    if junk:
        flaws.append(f"{junk} cells are no numbers")
    arrays = {
        name: pa.array(values, pa.int64() if name == "step" else pa.float64())
        for name, values in columns.items()
    }
    return pa.table({"step": arrays.pop("step"), **arrays}), flaws


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _write_problems(run: Run, problems: Sequence[Problem]) -> None:
    lines = [f"{problem.path}: {problem.reason}" for problem in problems]
    write_text(run.path / "problems.txt", "".join(f"{line}\n" for line in lines))


def export_archive(
    run: Run, target: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> None:
    """Writes the trials of `run` to the folder `target`, which must not be there yet. Repeats of
    winners are no part of that layout, and are left out."""
    if target.exists():
        raise BadInput(f"{target} is there already. Name a folder that is not.")
    # Complete or not there: it is made under another name.
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    studies = run.studies()
    for done, study in enumerate(studies, start=1):
        _export_study(run, study, done, unfinished)
        progress(done, len(studies))
    unfinished.rename(target)


def _export_study(run: Run, study: Study, place: int, target: Path) -> None:
    parts = study.workload.split("/")
    workload = parts if len(parts) > 1 else ["own", *parts]
    folder = target.joinpath(*map(_part, [*workload, study.recipe, str(study.batch_size)]))
    folder.mkdir(parents=True)
    trials, measurements = run.trials(study.key), run.measurements(study.key)
    document = {
        "batch_size": study.batch_size,
        "dataset": "/".join(workload[:-1]),
        "model": workload[-1],
        "optimizer": study.optimizer,
        "early_stopping": study.stop_at_goal,
        "train_steps": study.budget_steps,
        "parameter_configs": _parameter_configs(study.space),
    }
    foreign = "archive_status" in trials.column_names
    if not foreign:
        document[OURS] = {"place": place, **asdict(replace(study, repeats=0))}
    (folder / "study.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    columns = [name for name in measurements.column_names if name not in ("trial", "examples")]
    for row in trials.to_pylist():
        own = folder / str(row["trial"])
        own.mkdir()
        params = json.loads(row["params"])
        status = row.pop("archive_status", None) or STATUS_OUT[row["status"]]
        metadata = {
            "trial_id": row["trial"],
            "status": status,
            "steps": row["steps"],
            "parameters": params,
            **({} if foreign else {OURS: {**row, "params": params}}),
        }
        (own / "metadata.json").write_text(json.dumps(metadata, indent=1), encoding="utf-8")
        mine = of_trial(measurements, row["trial"])
        _write_curve(own / "measurements.csv", mine.select(columns))


def _write_curve(path: Path, curve: pa.Table) -> None:
    """Every digit of every number."""
    kept = [name for name in curve.column_names if curve[name].null_count < len(curve)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(kept or ["step"])
        columns = [curve[name].to_pylist() for name in kept]
        for row in zip(*columns, strict=True):
            writer.writerow("" if value is None else repr(value) for value in row)


def _part(name: str) -> str:
    """A folder's name that stays where it is put."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted


def _parameter_configs(space: Space) -> dict[str, Any]:
    scales = {ours: theirs for theirs, ours in SCALES.items()}
    configs: dict[str, Any] = {}
    for name, entry in space.items():
        if isinstance(entry, Range):
            configs[name] = {
                "type": "INTEGER" if entry.integer else "DOUBLE",
                "scale": scales[entry.scale],
                "min_value": entry.low,
                "max_value": entry.high,
            }
        else:
            options = entry.options if isinstance(entry, Choice) else (entry,)
            configs[name] = {"type": "DISCRETE", "feasible_points": list(options)}
    return configs


def _read_json(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError("is no JSON object")
    return document


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _problem(path: Path, source: Path, reason: str) -> Problem:
    return Problem(path=str(path.relative_to(source)), reason=reason)


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"has no {error.args[0]!r}"
    return str(error)
