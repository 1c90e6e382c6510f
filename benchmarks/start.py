"""How long a small sweep takes from command to answer: six trials of 60 steps.

digits/mlp, batch size 32, sgd, a goal that no trial reaches. Each side is a cold process, run once
to fill Python's cache of compiled modules and then several times in turns; the figures are medians.

torch          python -c "import torch"
sweep          orchestrate sweep, which decides by itself that Ray can't help
--no-ray       orchestrate sweep --no-ray
--ray          orchestrate sweep --ray, with Ray's dashboard

wall           seconds until the process has ended
processor      seconds of processor time, with those of its processes that somebody waited for:
               Ray's workers are not among them, so `--ray` takes more than is counted

Bounds: `sweep` takes at most 0.4 of the wall and of the processor time of `--ray`, and `--no-ray`
at most 2.7 times those of `torch`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from command_line import orchestrate, parser_of, print_result
from tables import Table, bounded

SWEEP = {
    "name": "start",
    "workloads": ["digits/mlp"],
    "goals": ["val/error < 0"],
    "recipes": ["sgd"],
    "batch_sizes": [32],
    "search": {"trials": 6},
    "budget": {"steps": 60},
}
TIMES = 5
MOST_OF_RAY, MOST_OF_TORCH = 0.4, 2.7

TORCH = [sys.executable, "-c", "import torch"]
SIDES = {"torch": TORCH, "sweep": [], "--no-ray": ["--no-ray"], "--ray": ["--ray"]}


def timed(command: list[str], folder: Path) -> tuple[float, float]:
    """Wall and processor seconds of a command. Python keeps compiled modules in `folder`, also
    where the environment says that it should not."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, env=env, check=False)
    wall, after = time.perf_counter() - began, os.times()
    assert done.returncode in (0, 3), done.stderr.decode()  # 3: the goal is not reached
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def command_of(side: str, folder: Path, run: Path) -> list[str]:
    if side == "torch":
        return TORCH
    program = str(Path(sys.executable).with_name("orchestrate"))
    return [program, "sweep", str(folder / "sweep.yaml"), "--out", str(run), *SIDES[side]]


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Side -> its median seconds."""
    seen: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(1 + TIMES):
        for side, seconds in seen.items():
            found = timed(command_of(side, folder, folder / f"run{side}-{number}"), folder)
            if number:
                seconds.append(found)
    return {
        side: {
            "wall": statistics.median(wall for wall, _ in seconds),
            "processor": statistics.median(used for _, used in seconds),
        }
        for side, seconds in seen.items()
    }


def main() -> int:
    options = parser_of(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
        if options.smoke:
            orchestrate("sweep", folder / "sweep.yaml", "--out", folder / "run", smoke=True)
            print("six trials were trained")
            return print_result("start", {}, {}, options)
        found = measure(folder)
    figures: dict[str, Any] = {"sides": found}
    rows = [
        [f"`{side}`", f"{seconds['wall']:.2f} s", f"{seconds['processor']:.2f} s", ""]
        for side, seconds in found.items()
    ]
    ok = True
    for side, other, most in (
        ("sweep", "--ray", MOST_OF_RAY),
        ("--no-ray", "torch", MOST_OF_TORCH),
    ):
        ratios = [found[side][kind] / found[other][kind] for kind in ("wall", "processor")]
        ok &= max(ratios) <= most
        figures[f"{side} / {other}"] = ratios
        cells = [bounded(f"{ratio:.2f}", ratio <= most) for ratio in ratios]
        rows.append([f"`{side}` over `{other}`", *cells, f"{most}"])
    table = Table(["side", "by the clock", "of the processor", "bound"], rows)
    return print_result("start", {"": table}, figures, options, ok=ok)


if __name__ == "__main__":
    sys.exit(main())
