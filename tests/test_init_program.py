"""`orchestrate init --program`: what it guesses, and that its file can be planned."""

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import warm
import yaml
from conftest import called, command, orchestrate, refused

from orchestrator.cluster import sweeps
from orchestrator.planning.machines import Cluster
from orchestrator.programs.guessing import completed, default_of, goal_of, in_output, options_of
from orchestrator.records import BadInput

HF = """
  --per-device-train-batch-size N, --per_device_train_batch_size N  (default: 8)
  --per_device_eval_batch_size N   (default: 8)
  --gradient_accumulation_steps N  Passes. (default: 1)
  --learning_rate X   (default: 5e-05)
  --warmup_steps N    --eval_steps N  --max_steps N (default: -1)   --seed SEED  --data_seed N"""


@pytest.mark.parametrize(
    ("help_", "expected"),
    [
        ("usage: t.py [--lr LR]\n --lr LR  Rate (default: 0.1)\n -b N, --batch-size N",
         "t --lr {learning_rate} --batch-size {batch_size}"),
        (HF,
         "t --learning_rate {learning_rate} --per-device-train-batch-size {batch_size_per_device} "
         "--gradient_accumulation_steps {accumulation_steps} --seed {seed} --max_steps {steps}"),
        ("  --batch-size N\n  --grad-accum N\n  --val.steps N  --train.steps N",
         "t --grad-accum {accumulation_steps} --train.steps {steps} "
         "--batch-size {batch_size_per_device}"),
        ("trains at once", "t"),
    ],
)  # fmt: skip
def test_options_are_guessed_by_their_names(help_: str, expected: str) -> None:
    found = options_of("t", help_)
    assert completed("t", {option: f"{{{name}}}" for name, option in found.items()}) == expected


def test_a_command_keeps_what_it_says_itself() -> None:
    help_ = "t [--lr X] --lr X (default: 0.5) --bs N --seed N (default: 3) --steps N"
    found = options_of("t --bs {batch_size_per_device} --steps=9 --seed 3 x", help_)
    assert [*found] == ["learning_rate", "seed", "steps"]
    assert [default_of(option, help_) for option in found.values()] == [0.5, 3, None]
    twice = "  --learning_rate X, --learning-rate X\n   (default:\n   5e-05)\n  --n N (default: 3)"
    assert default_of("--learning_rate", twice) == 5e-5
    assert default_of("--lr", "  --lr: Rate.\n    (default: '0.5')\n    (a number)") == 0.5  # absl
    assert default_of("--lr", "    -l, --lr=LR\n        Default: 0.5") == 0.5  # fire
    given = {option: name for name, option in found.items()}
    assert completed("t --steps=9 --seed 3 x", given) == (
        "t --steps steps --seed seed x --lr learning_rate"
    )


@pytest.mark.parametrize(
    ("lines", "goal"),
    [
        (["step 100: train loss 2.3, val loss 2.5", "step 200: train loss 2.1, val loss 2.25."],
         "val_loss < 2.25"),
        (["{'loss': 1.2, 'eval_loss': 1.3, 'step': 10}"], "eval_loss < 1.3"),
        (["iter 0: loss 4.2, time 23ms", "step 0: train loss 4, val loss 5", "iter 1: loss 3e-1"],
         "val_loss < 5"),
        (["step:1,000/6,000 val_loss:4.6 train_time:9ms", "step:2,000/6,000 val_loss:nan"],
         "val_loss < 4.6"),
        (["Iteration   5 | Loss:     -2.5 | Accuracy: 0.5"], "loss < -2.5"),
        (["step 1 loss 2 val_err 0.5", "step 2 loss 1 val_err 0.25"], "val_err < 0.25"),
        (["global_step=3 val/acc=0.5", "global_step=6 val/acc=0.75"], "val_acc > 0.75"),
        (["step 1 ppl 1,010.5", "step 2 ppl 9.0E+02", "step 3 ppl NaN"], "ppl < 900"),
        (["step 5: val loss scale 65536.0, train loss 2.5"], "train_loss < 2.5"),
        (["epoch 1 step 5 loss 3", "epoch 2 step 5 loss 2", "epoch 3 step 1 loss 2"], ""),
        (["epoch 3: loss 2.5", "step 5 took 3 s", "{'loss': 2.5, 'epoch': 1}"], ""),
    ],
)  # fmt: skip
def test_numbers_are_found_in_output(lines: list[str], goal: str) -> None:
    found = in_output(lines)
    assert goal == (goal_of(found.name, found.values) if found else "")


def test_reports_are_read_as_lines_are() -> None:
    lines = ['{"step": 1, "loss": null}', "[]", "{", '{"lr": 0.1, "val/loss": 2.5, "step": 2}']
    found = in_output(lines)
    assert found is not None
    assert goal_of(found.said, found.values) == "val/loss < 2.5"
    assert goal_of("loss", [float("nan")]) == ""


PRINTS = """
import argparse
p = argparse.ArgumentParser()
for name in ("--lr", "--batch-size", "--seed", "--max-steps", "--out-dir"):
    p.add_argument(name, default=1)
for step in range(0, int(p.parse_args().max_steps), 50):
    print(f"step {step}: val loss {5 / (1 + step)}")
"""
FAILS = "import sys; print('no GPU'); sys.exit(3)"


@pytest.mark.dear
def test_the_file_of_a_program_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(PRINTS)
    made = orchestrate("init", "my-gpt", "--program", "python train.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert {file.name for file in tmp_path.iterdir()} == {
        "train.py", "my_gpt.yaml", "sweep.schema.json",
    }  # fmt: skip
    planned = orchestrate("plan", "my_gpt.yaml", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    monkeypatch.chdir(tmp_path)
    with refused("exists", "my_gpt.yaml"):
        called("init", "my_gpt", "--program", "python train.py")


@pytest.mark.dear
def test_numbers_of_the_command_itself_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = '"--lr", "--batch-size", "--grad-accum", "--num-processes",'
    (tmp_path / "train.py").write_text(PRINTS.replace('"--lr", "--batch-size",', options))
    monkeypatch.chdir(tmp_path)
    itself = "--num-processes 4 --lr 0.5 --batch-size 8 --grad-accum 2"
    called("init", "--program", f"python train.py {itself}")
    made = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    (workload,) = made["workloads"]
    assert "--num-processes {devices}" in workload["program"]
    assert workload["max_per_device"] == 8
    assert made["recipes"][0]["space"]["learning_rate"]["high"] == 5
    assert made["batch_sizes"] == [16, 32, 64, 128]  # around 8 x 2 x 4
    assert made["resources"] == {"examples_per_device": 1, "max_devices": 4}
    called("plan", "mine.yaml")


@pytest.mark.dear
def test_a_file_is_written_for_a_program_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(FAILS)
    made = orchestrate("init", "--program", "python train.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "no GPU" in made.stderr
    assert "code 3" in made.stderr
    assert "TODO: write {learning_rate}" in (tmp_path / "mine.yaml").read_text()
    monkeypatch.chdir(tmp_path)
    for code, *options in (
        ("missing-file", "--program", "python missing.py"),
        ("wrong-value", "--program", " "),
        ("not-together", "--kind", "language", "--program", "true"),
    ):
        with refused(code):
            called("init", "other", *options)


@pytest.mark.dear
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    """The program trains at once, whatever it is asked for, and says so by a pipe."""
    os.mkfifo(tmp_path / "begun")
    (tmp_path / "train.py").write_text(
        "import os, time\nwith open('begun', 'w') as file:\n"
        "    print(os.getpid(), file=file, flush=True)\n    time.sleep(600)"
    )
    asked = [*command("init", "--program", f"{sys.executable} train.py"), "--seconds", "500"]
    with subprocess.Popen(asked, cwd=tmp_path, stderr=subprocess.PIPE) as init:
        with (tmp_path / "begun").open() as begun:
            assert begun.readline()
            init.send_signal(signal.SIGTERM)  # as Ctrl-C, which background jobs ignore
            assert not begun.read()  # the pipe is closed, so the program has ended
        init.communicate()
    assert init.returncode == 130
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.dear
@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("regression", "language")),
    ],
)
def test_a_start_trains_as_written_and_reaches_its_goal(kind: str, tmp_path: Path) -> None:
    made = orchestrate("init", "my-first", "--kind", kind, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "my_first.py:MyFirst" in made.stderr
    assert {file.name for file in tmp_path.iterdir()} == {
        "my_first.py", "my_first.yaml", "test_my_first.py", "sweep.schema.json",
    }  # fmt: skip
    pytest_command = str(Path(sys.executable).with_name("pytest"))
    tested = warm.run(
        [pytest_command, "-q", "-p", "no:cacheprovider", "test_my_first.py"], tmp_path
    )
    assert tested.returncode == 0, tested.stdout
    if kind != "classification":  # which the README sweeps
        ends = ("batch_sizes=[16, 256]", "search.trials=3", "repeats=0")
        fewer = [f"--set={key}" for key in ends]
        swept = orchestrate("sweep", "my_first.yaml", "--no-ray", *fewer, cwd=tmp_path)
        assert swept.returncode == 0, swept.stdout


def test_a_name_may_hold_words_of_the_starters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called("init", "RATE_CLASS")
    assert '["RATE_CLASS.py:RateClass"]' in (tmp_path / "RATE_CLASS.yaml").read_text()
    called("init", "BIN_NAME", "--slurm")
    assert "sbatch BIN_NAME.sbatch" in (tmp_path / "BIN_NAME.sbatch").read_text()


@pytest.mark.parametrize(("times", "put_back"), [("99", True), ("100", False)])
def test_a_job_of_slurm_is_not_put_back_for_ever(
    times: str, put_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called("init", "--slurm")
    for name, does in (("srun", "exit 75"), ("scontrol", "echo $1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    job = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": times}
    done = subprocess.run(["bash", "mine.sbatch"], env=job, capture_output=True, check=False)
    assert done.returncode == 75
    assert (b"requeue" in done.stdout) == put_back


def test_a_job_of_slurm_agrees_to_no_size_and_its_user_gets_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called("init", "--slurm")
    asked = '[ $(find *.token -perm 600) ] && grep -qx "$RAY_AUTH_TOKEN" orchestrate-7.token'
    for name, does in (("srun", f'{asked} && echo "$@"'), ("scontrol", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    job = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    said = subprocess.check_output(["bash", "mine.sbatch", "my_sweep.yaml"], env=job, text=True)
    assert "orchestrate sweep my_sweep.yaml --address slurm\n" in said
    assert f" is in {tmp_path}/orchestrate-7.token\n" in said
    assert not [*tmp_path.glob("*.token")], "nobody asks for it any more"


@pytest.mark.parametrize("own", [True, False])
def test_a_token_that_another_shell_does_not_have_is_told_so(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    if own:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "0")
    cluster = Cluster(machines=(), dashboard="host:8265")
    monkeypatch.setattr(sweeps, "connect", lambda *_: nullcontext(cluster))
    monkeypatch.setattr(sweeps, "on_ray", lambda *_: nullcontext())
    said: list[str] = []
    job = Mock(run=Mock(log=lambda: nullcontext(tmp_path / "log.txt")))
    with sweeps.ray_at("slurm", said.append)(job):
        assert ("RAY_AUTH_TOKEN is its token" in said[0]) == own
        assert ("`ray get-auth-token` prints its token" in said[0]) != own


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_mine.py").write_text("mine")
    with refused("exists", "test_mine.py"):
        called("init")
    with refused("wrong-value", "'../mine'"):
        called("init", "../mine")
    for hidden in ("torch", "orchestrator", "class", "json", "a" * 250):  # a module by its file
        with pytest.raises(BadInput):
            called("init", hidden)
    assert [file.name for file in tmp_path.iterdir()] == ["test_mine.py"]
