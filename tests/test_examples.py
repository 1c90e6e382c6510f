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
    (tmp_path / "stop").touch()
    done = by_hand(tmp_path, EXAMPLES / f"{name}.py")
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / "reports").read_text().splitlines()
    assert json.loads(line)["step"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_trainer", "lit_trainer", "fsdp"])
def test_a_batch_that_is_divided_over_more_ranks_than_train_is_refused(
    name: str, tmp_path: Path
) -> None:
    """Some launchers start one process on CPUs, whatever number they are asked for."""
    launch = ("-m", "torch.distributed.run", "--standalone")
    told = {"batch_size": 32, "batch_size_per_device": 16, "devices": 2}
    done = by_hand(tmp_path, *launch, EXAMPLES / f"{name}.py", **told)
    assert "the batch of 32 is divided by 2" in done.stderr
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "line", "more"),
    [
        ("hf_trainer", 8, "trainer = ", "args.gradient_accumulation_steps = 4; "),
        ("lit_trainer", 32, "logger=False", "accumulate_grad_batches=4, "),
    ],
)
def test_a_step_of_another_batch_size_is_refused(
    name: str, size: int, line: str, more: str, tmp_path: Path
) -> None:
    """As if the command gave the trial's batch size where the trainer takes that of a pass."""
    own, text = tmp_path / f"{name}.py", (EXAMPLES / f"{name}.py").read_text()
    own.write_text(text.replace(line, more + line))
    done = by_hand(tmp_path, own, batch_size=size)
    assert f"takes {4 * size} examples on 1 ranks" in done.stderr
    assert not (tmp_path / "reports").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "line", "other", "said"),
    [
        ("hf_trainer", 8, "rows[:1500]", "rows[:5]", "has 5 examples, so a step takes 5,"),
        (
            "lit_trainer",
            32,
            "train, batch_size=args.batch_size, shuffle=True, drop_last=True",
            "torch.utils.data.Subset(data, range(40)), args.batch_size",
            "has 40 examples, so a step takes 8,",
        ),
    ],
)
def test_a_training_set_that_does_not_fill_its_steps_is_refused(
    name: str, size: int, line: str, other: str, said: str, tmp_path: Path
) -> None:
    own, text = tmp_path / f"{name}.py", (EXAMPLES / f"{name}.py").read_text()
    own.write_text(text.replace(line, other))
    assert said in by_hand(tmp_path, own, batch_size=size, steps=200).stderr
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


def by_hand(folder: Path, *script: str | Path, **told: int) -> subprocess.CompletedProcess[str]:
    """Runs an example as a process that trains a trial, of which it is told this."""
    more = ["--output_dir", folder, "--use_cpu", "true"] if "hf_trainer" in str(script[-1]) else []
    env = {f"ORCHESTRATE_{name.upper()}": str(folder / name) for name in ("reports", "stop")}
    env |= {"ORCHESTRATE_TRIAL": json.dumps(told)} if told else {}
    return subprocess.run(
        [sys.executable, *script, *more], env=os.environ | env, cwd=folder, check=False,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
