"""Small sweeps start quickly: without Ray, and without packages that they do not need."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, command

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.results import RunFiles
from orchestrator.sweeping import local
from orchestrator.sweeping.executor import Job
from orchestrator.sweeping.local import why_here
from orchestrator.training.optimizers import OPTIMIZERS


def reason(**changes: Any) -> str | None:
    planned = plan(Sweep.model_validate({**TINY, **changes}))
    return why_here(Job(run=RunFiles("never"), sweep=planned.sweep, studies=planned.studies))


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": {"steps": 5000}},
        {"search": {"trials": 200}},
        {"batch_sizes": [1024], "workloads": ["digits/cnn"], "budget": {"steps": 200}},
        {"resources": {"examples_per_device": 32, "max_devices": 2}},
        {"resources": {"cpus_per_rank": 2}},
        {"resources": {"gpus_per_device": 1}},
        {"faults": {"hang_seconds": 5}},
    ],
)
def test_ray_is_started_where_it_helps_or_is_needed(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "cores", lambda: 2)
    assert reason(**changes) is None


def test_few_steps_need_no_ray_and_neither_does_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "cores", lambda: 2)
    assert "10 s" in str(reason())
    monkeypatch.setattr(local, "cores", lambda: 1)
    assert "one core" in str(reason(budget={"steps": 50_000}))


IMPORTED = """
import sys
from orchestrator.cli import main
try:
    main()
finally:
    known = {"ray", "sympy", "torch", "torch._dynamo", "pyarrow", "scipy.stats"}
    print("imported:", *(known & sys.modules.keys()))
"""


@pytest.mark.dear
def test_a_small_sweep_says_that_it_needs_no_ray_and_imports_little(
    sweep_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Torch's compiler and scipy.stats take more than a second of processor time each. Trials are
    trained in a stack with SGD, and alone with all other optimizers."""
    alone = [
        {"name": name, "optimizer": name, "search": {"trials": 1}}
        for name in OPTIMIZERS
        if name != "sgd"
    ]
    file = sweep_file(recipes=["sgd", *alone], batch_sizes=[256], budget={"steps": 20})
    words = [*command("sweep", file, "--out", tmp_path / "run")][1:]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3), done.stderr
    assert sum("--ray" in line for line in done.stderr.splitlines()) == 1
    assert set(done.stdout.splitlines()[-1].split()) == {"imported:", "torch", "pyarrow"}
