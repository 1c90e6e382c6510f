"""A part of the synthetic archive (archive.py): all frontiers, import and size, ours and pandas'.

frontier   `orchestrate frontier`, a cold process on the store of a run, one goal for 454 studies;
           against the obvious way: read every CSV, concatenate, sort, group, take the first
import     the published layout into a run, against pandas reading the same files
size       the run's files, against `tar | bzip2` of the published layout

Prints the scale beside: of `--factor 1` (71.6 million measurements) only the frontier is taken.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from archive import GOAL, write_archive

from orchestrator.results import Run, export_archive

ORCHESTRATE = Path(sys.executable).with_name("orchestrate")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def frontier_by_command(run: Path) -> dict[tuple[str, ...], tuple[int, int]]:
    command = [ORCHESTRATE, "frontier", run, "--goal", str(GOAL), "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
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


def compare(folder: Path, factor: float) -> dict[str, Any]:
    run, source, back = folder / "run", folder / "archive", folder / "imported"
    measurements = write_archive(run, factor)
    cold = min(timed(lambda: frontier_by_command(run))[0] for _ in range(3))
    found: dict[str, Any] = {
        "measurements": measurements,
        "frontier_seconds": cold,
        "peak_gb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
    }
    if factor == 1:
        return found
    export_archive(Run(run), source)
    read_seconds, table = timed(lambda: read_by_pandas(source))
    group_seconds, theirs = timed(partial(frontier_by_pandas, table))
    assert frontier_by_command(run) == theirs
    command = [ORCHESTRATE, "import", source, "--out", back]
    import_seconds, _ = timed(lambda: subprocess.run(command, check=True, capture_output=True))
    assert frontier_by_command(back) == theirs
    packed = subprocess.run(
        f"tar -C {source} -c . | bzip2 | wc -c", shell=True, check=True, capture_output=True
    )
    return {
        **found,
        "pandas_seconds": read_seconds + group_seconds,
        "pandas_reading_seconds": read_seconds,
        "import_seconds": import_seconds,
        "run_mb": bytes_in(back) / 1e6,
        "tar_bz2_mb": int(packed.stdout) / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--factor", type=float, default=0.02)
    factor = parser.parse_args().factor
    with tempfile.TemporaryDirectory() as folder:
        found = compare(Path(folder), factor)
    print(f"factor {factor:g}: {found['measurements']:,} measurements, {os.cpu_count()} cores")
    cold = found["frontier_seconds"]
    print(f"frontier  {cold:8.2f} s, at most {found['peak_gb']:.2f} GB", end="")
    if "pandas_seconds" in found:
        pandas, reading = found["pandas_seconds"], found["pandas_reading_seconds"]
        print(f"; pandas {pandas:8.2f} s, {pandas / cold:.0f} times as long")
        print(
            f"import    {found['import_seconds']:8.2f} s; pandas reads in {reading:8.2f} s", end=""
        )
        print(f", {reading / found['import_seconds']:.1f} times as long")
        print(
            f"size      {found['run_mb']:8.1f} MB; tar | bzip2 {found['tar_bz2_mb']:8.1f} MB",
            end="",
        )
    print()
    print(json.dumps({"benchmark": "results_scale", "factor": factor, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
