"""How long does it take to import runs that were trained elsewhere, and how much memory?

    python benchmarks/outside.py
    python benchmarks/outside.py --smoke

Imports 300 runs of TensorBoard's event files with 3,000 scalars each, and a table of 10 million
rows in CSV. Bounds: 20 s for the first; 60 s and 2 GB for the second. Where other processes use the
machine, its seconds say little, so processor time is printed, too.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from command_line import orchestrate, parser_of, print_result
from tables import Table, bounded

RUNS, SCALARS, ROWS = 300, 3_000, 10_000_000
BOUNDS = {"events": (20, 2), "csv": (60, 2)}
"""Source -> seconds and GB."""
NAMES = {
    "events": f"{RUNS} runs of {SCALARS:,} scalars",
    "csv": f"{ROWS:,} rows of five columns",
}


def event(step: int, loss: float, tag: bytes = b"val_loss") -> bytes:
    """A scalar as a record of an event file, whose checksums nobody reads here."""
    value = b"\n" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", loss)
    summary = b"\n" + bytes([len(value)]) + value
    steps = bytes([step & 127 | 128, step >> 7 & 127 | 128, step >> 14])
    body = b"\t" + struct.pack("<d", 1e9 + step) + b"\x10" + steps
    body += b"*" + bytes([len(summary)]) + summary
    return struct.pack("<QI", len(body), 0) + body + bytes(4)


def write_events(folder: Path, runs: int, scalars: int) -> Path:
    for run in range(runs):
        place = folder / f"batch_size={2 ** (3 + run % 6)},lr={1 + run // 6 % 5},seed={run // 30}"
        place.mkdir(parents=True)
        steps = range(10, 10 * scalars + 1, 10)
        content = b"".join(event(step, 10 / step**0.3) for step in steps)
        (place / "events.out.tfevents.0").write_bytes(content)
    return folder


def write_csv(path: Path, rows: int) -> Path:
    runs = min(2_000, rows // 10)
    run, place = np.repeat(np.arange(runs), rows // runs), np.tile(np.arange(rows // runs), runs)
    columns = {
        "batch_size": 2 ** (3 + run % 8),
        "lr": 10.0 ** (-3 + run // 8 % 25 / 10),
        "seed": run // 200,
        "step": 10 * place,
        "val_loss": 3
        + 10 / (1 + place) ** 0.3
        + np.random.default_rng(0).normal(0, 0.01, len(run)),
    }
    pa_csv.write_csv(pa.table(columns), path)
    return path


def main() -> int:
    parser = parser_of(__doc__ or "")
    options = parser.parse_args()
    part = 100 if options.smoke else 1
    figures, rows, ok = {}, [], True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = {
            "events": write_events(folder / "events", RUNS // part, SCALARS // part),
            "csv": write_csv(folder / "runs.csv", ROWS // part),
        }
        for kind, source in sources.items():
            done = orchestrate(
                "import", source, "--out", folder / f"run-{kind}", smoke=options.smoke
            )
            figures[kind] = [done.seconds, done.cpu_seconds, done.peak_gb]
            seconds, gigabytes = BOUNDS[kind]
            rows.append(
                [
                    f"{kind}: {NAMES[kind]}",
                    bounded(f"{done.seconds:.1f}", done.seconds <= seconds),
                    f"{seconds}",
                    f"{done.cpu_seconds:.1f}",
                    bounded(f"{done.peak_gb:.2f}", done.peak_gb <= gigabytes),
                    f"{gigabytes}",
                ]
            )
            ok &= done.seconds <= seconds and done.peak_gb <= gigabytes
    heads = ("source", "seconds", "bound", "of the processor", "GB", "bound")
    return print_result("outside", {"": Table(heads, rows)}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
