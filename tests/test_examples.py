"""Scripts of several kinds, swept as they are: what a sweep needs of them, and that they train."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, orchestrate

from orchestrator.files.yaml_files import read_yaml
from orchestrator.results import RunFiles

EXAMPLES = ROOT / "examples"
SWEEPS = sorted(EXAMPLES.glob("*.yaml"))
QUICK = {"function", "line", "unchanged"}
"""They do not import torch."""

FOR_SWEEPS = re.compile(r"orchestrat|\breport|ReportCallback", re.IGNORECASE)
"""In lines of a script that only a sweep needs."""


def script_of(sweep: Path) -> Path:
    (script,) = set(EXAMPLES.glob(f"{sweep.stem}.*")) - {sweep}
    return script


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)
def test_few_lines_are_for_the_sweep(sweep: Path) -> None:
    script = script_of(sweep).read_text().splitlines()
    assert len([line for line in script if FOR_SWEEPS.search(line)]) <= 3
    _, _, entry = sweep.read_text().partition("\nworkloads:")
    assert len(entry.partition("\nrecipes:")[0].splitlines()) <= 8


def test_every_example_is_on_the_page() -> None:
    page = (ROOT / "docs" / "bring-your-script.md").read_text()
    shown = re.findall(r"^\| \[([\w.]+)\]\(\S+\) \| \[([\w.]+)\]\(\S+\) \|", page, re.M)
    assert sorted(shown) == sorted((script_of(sweep).name, sweep.name) for sweep in SWEEPS)


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(path, marks=pytest.mark.dear if path.stem in QUICK else pytest.mark.slow)
        for path in SWEEPS
    ],
    ids=lambda path: path.stem,
)
def test_an_example_reaches_its_goal(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    before = {*tmp_path.iterdir()}
    largest = read_yaml(sweep)["batch_sizes"][-1]
    done = orchestrate(
        "sweep", sweep.name, "--no-ray", "--set", "search.trials=1", "--set", "repeats=0",
        "--set", f"batch_sizes=[{largest}]", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = RunFiles(tmp_path / "runs" / sweep.stem)
    rows = [row for study in run.studies() for row in run.trials(study.key).to_pylist()]
    assert {row["status"] for row in rows} == {"reached"}
    left = {path for path in tmp_path.iterdir() if path.name not in ("runs", "__pycache__")}
    assert left <= before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_trainer", "lit_trainer"])
def test_a_trainer_reports_while_it_trains_and_ends_when_told(name: str, tmp_path: Path) -> None:
    """Not in the check before a training, nor in an evaluation after it."""
    reports, stop = tmp_path / "reports", tmp_path / "stop"
    stop.touch()
    arguments = ["--output_dir", tmp_path, "--use_cpu", "true"] if name == "hf_trainer" else []
    subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *arguments],
        env=os.environ | reports_to(tmp_path), cwd=tmp_path, check=True, capture_output=True,
        timeout=900,
    )  # fmt: skip
    (line,) = reports.read_text().splitlines()
    assert json.loads(line)["step"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_trainer", "lit_trainer", "fsdp"])
def test_a_batch_that_is_divided_over_more_ranks_than_train_is_refused(
    name: str, tmp_path: Path
) -> None:
    """Some launchers start one process on CPUs, whatever number they are asked for."""
    told = {"batch_size": 32, "batch_size_per_device": 16, "devices": 2}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", EXAMPLES / f"{name}.py"]
        + (["--output_dir", tmp_path, "--use_cpu", "true"] if name == "hf_trainer" else []),
        env=os.environ | reports_to(tmp_path) | {"ORCHESTRATE_TRIAL": json.dumps(told)},
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert "the batch of 32 is divided by 2" in done.stderr
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("hf_trainer", "--output_dir out --use_cpu --gradient_accumulation_steps 4"), ("own", "")],
)
def test_a_step_of_another_batch_size_is_refused(name: str, options: str, tmp_path: Path) -> None:
    """As if the command gave the trial's batch size where the trainer takes that of a pass."""
    text = (EXAMPLES / "lit_trainer.py").read_text()
    text = text.replace("logger=False", "logger=False, accumulate_grad_batches=4")
    (tmp_path / "own.py").write_text(text)
    size = 8 if name == "hf_trainer" else 32
    done = subprocess.run(
        [sys.executable, (EXAMPLES if options else tmp_path) / f"{name}.py", *options.split()],
        env=os.environ | reports_to(tmp_path) | {"ORCHESTRATE_TRIAL": f'{{"batch_size": {size}}}'},
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert f"takes {4 * size} examples on 1 ranks" in done.stderr
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "told"),
    [("raise SystemExit('no data')", "no data"), ("os.kill(os.getpid(), 9)", "exitcode: -9")],
)
def test_the_last_line_of_a_failure_under_torchrun_is_the_error(
    failure: str, told: str, tmp_path: Path
) -> None:
    """Not one of the forty that torchrun prints after it."""
    script = f"import os, time\nif os.environ['RANK'] == '0': time.sleep(60)\n{failure}"
    (tmp_path / "ddp.py").write_text(script)
    shutil.copy(EXAMPLES / "ddp.yaml", tmp_path)
    done = orchestrate("trial", "ddp.yaml", cwd=tmp_path)
    assert told in done.stderr.splitlines()[-1]


def reports_to(folder: Path) -> dict[str, str]:
    names = {"REPORTS": "reports", "STOP": "stop"}
    return {f"ORCHESTRATE_{name}": str(folder / file) for name, file in names.items()}
