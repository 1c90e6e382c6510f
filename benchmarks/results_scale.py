"""A part of the synthetic archive (archive.py): all frontiers, import and size, ours and pandas'.

frontier   `orchestrate frontier`, a cold process on the store of a run, one goal for 454 studies,
           then another; against the obvious way: read every CSV, concatenate, sort, group, take
           the first
report     its page
import     the published layout into a run, against pandas reading the same files
size       the run's files, against `tar | bzip2` of the published layout

Prints the scale beside: of `--factor 1` (71.6 million measurements) only frontier and report are
taken.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from archive import (
    GOAL,
    SMOKE_FACTOR,
    SMOKE_STUDIES,
    Planted,
    planted,
    publish_archive,
    write_archive,
)
from command_line import orchestrate, parser_of, print_result
from tables import Table

from orchestrator.records import Goal

OTHER_GOAL = Goal.parse("test/cross_entropy_error < 0.3")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def frontiers(
    run: Path, goal: Goal, *, smoke: bool
) -> tuple[float, float, dict[tuple[str, ...], Any]]:
    """Median seconds, peak memory in GB, and steps and trial of each study."""
    times = 1 if smoke else 3
    words = ("frontier", run, "--goal", goal, "--json")
    runs = [orchestrate(*words, smoke=smoke) for _ in range(times)]
    return (
        statistics.median(run.seconds for run in runs),
        max(run.peak_gb for run in runs),
        answers(json.loads(runs[0].printed)),
    )


def answers(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], tuple[int, int]]:
    return {
        (*row["workload"].split("/"), row["recipe"], str(row["batch_size"])): (
            row["steps"],
            row["trial"],
        )
        for row in rows
        if row["reached"]
    }


def read_by_pandas(source: Path) -> pd.DataFrame:
    frames = []
    for path in source.glob("**/metadata.json"):
        if json.loads(path.read_text())["status"] == "COMPLETE":
            frame = pd.read_csv(path.with_name("measurements.csv"))
            study = path.parent.parent.relative_to(source)
            frames.append(frame.assign(study=str(study), trial=int(path.parent.name)))
    return pd.concat(frames, ignore_index=True)


def frontier_by_pandas(table: pd.DataFrame) -> dict[tuple[str, ...], tuple[int, int]]:
    passed = table[table[GOAL.metric] < GOAL.bound]
    first = passed.sort_values(["step", "trial"], kind="stable").groupby("study").first()
    return {
        tuple(str(study).split("/")): (int(row["step"]), int(row["trial"]))
        for study, row in first.iterrows()
    }


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def compare(
    folder: Path, plants: Sequence[Planted], *, smoke: bool, with_pandas: bool
) -> dict[str, Any]:
    run, source, back = folder / "run", folder / "archive", folder / "imported"
    measurements = write_archive(run, plants)
    seconds, peak, ours = frontiers(run, GOAL, smoke=smoke)
    page = folder / "page.html"
    written = orchestrate("report", run, "--goal", GOAL, "-o", page, smoke=smoke)
    found: dict[str, Any] = {
        "measurements": measurements,
        "frontier_seconds": seconds,
        "frontier_peak_gb": peak,
        "second_goal_seconds": frontiers(run, OTHER_GOAL, smoke=smoke)[0],
        "report_seconds": written.seconds,
        "report_peak_gb": written.peak_gb,
        "report_mb": page.stat().st_size / 1e6,
    }
    if not with_pandas:
        return found
    publish_archive(source, plants)
    shutil.rmtree(run)
    # Before pandas: what is started from a large process is counted as large.
    imported = orchestrate("import", source, "--out", back, smoke=smoke)
    read_seconds, table = timed(lambda: read_by_pandas(source))
    group_seconds, theirs = timed(partial(frontier_by_pandas, table))
    del table
    assert ours == theirs
    assert frontiers(back, GOAL, smoke=smoke)[2] == theirs
    packed = subprocess.run(
        f"tar -C {source} -c . | bzip2 | wc -c", shell=True, check=True, capture_output=True
    )
    return {
        **found,
        "pandas_seconds": read_seconds + group_seconds,
        "pandas_reading_seconds": read_seconds,
        "import_seconds": imported.seconds,
        "import_peak_gb": imported.peak_gb,
        "run_mb": bytes_in(back) / 1e6,
        "tar_bz2_mb": int(packed.stdout) / 1e6,
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--factor", type=float, default=0.02)
    options = parser.parse_args()
    factor = SMOKE_FACTOR if options.smoke else options.factor
    plants = planted(factor, SMOKE_STUDIES if options.smoke else None)
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), plants, smoke=options.smoke, with_pandas=factor != 1)
    rows = [
        ["`frontier`, one goal", "{frontier_seconds:.2f} s, {frontier_peak_gb:.2f} GB"],
        ["another goal", "{second_goal_seconds:.2f} s"],
        ["the obvious way in pandas", "{pandas_seconds:.1f} s"],
        ["`report`", "{report_seconds:.1f} s, {report_peak_gb:.2f} GB, {report_mb:.1f} MB"],
        ["`import`", "{import_seconds:.1f} s, {import_peak_gb:.2f} GB"],
        ["pandas, reading the same files", "{pandas_reading_seconds:.1f} s"],
        ["the run's files", "{run_mb:.0f} MB"],
        ["`tar` and `bzip2` of the published layout", "{tar_bz2_mb:.0f} MB"],
    ]
    without = factor == 1
    table = Table(
        [f"factor {factor:g}", f"{found['measurements']:,} measurements"],
        [
            [what, said.format_map(found)]
            for what, said in rows
            if not without or what.startswith(("`frontier", "another", "`report"))
        ],
    )
    tables = {f"factor {options.factor:g}": table}
    return print_result("results_scale", tables, {"factor": factor, **found}, options)


if __name__ == "__main__":
    sys.exit(main())
