import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, assert_refused, called, command, invoked, orchestrate, refused

pytestmark = pytest.mark.dear


def test_a_trial_by_hand() -> None:
    result = orchestrate(
        "trial", "digits/mlp", "--optimizer", "momentum", "--batch-size", 37, "--steps", 5,
        "--ranks", 2, "--set", "learning_rate=1e-2", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["status"], answer["steps"], len(answer["ranks"])) == ("exhausted", 5, 2)
    assert answer["params"]["learning_rate"] == 0.01
    assert answer["measurements"][0]["step"] == 0
    assert answer["measurements"][-1].keys() >= {"step", "val/error", "val/loss", "batch/loss"}


def test_mistakes_of_usage_do_so_too() -> None:
    for arguments, name in (("swep", "'sweep'"), ("trial w --batch-size 0", "--batch-size")):
        code, said = invoked(*arguments.split())
        assert code == 2
        assert name in said


ANSWER, REFUSAL = ("frontier", ROOT / "atlas/runs/quickstart.zip", "--json"), ("status", "/no/run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "more", "said"),
    [
        (ANSWER, "> /dev/full", "No space left"),
        (ANSWER, ">&3", ""),
        (REFUSAL, "2> /dev/full", ""),
        (REFUSAL, ">&3 2>&3", ""),
    ],
)
def test_what_nobody_can_read_ends_without_a_traceback(
    asked: tuple[object, ...], more: str, said: str
) -> None:
    # The reader of the pipe has ended before the command begins.
    shell = f"exec 3> >(:); wait $!; {' '.join(command(*asked))} {more}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert result.returncode == 2 if asked is REFUSAL else result.returncode != 0
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 2 * bool(said)


@pytest.mark.slow
def test_an_old_encoding_lacks_signs_but_no_answers() -> None:
    old = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = orchestrate("frontier", ROOT / "atlas/runs/quickstart.zip", env=old)
    assert result.returncode == 0, result.stderr
    assert "Steps    ?  " in result.stdout


def test_an_error_that_click_takes_for_the_end_of_input_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from orchestrator.workloads.digits import DigitsMLP\n"
        "class Mine(DigitsMLP):\n"
        "    def data(self, data_dir):\n"
        "        raise EOFError('Ran out of input')\n"
    )
    result = orchestrate("plan", "quickstart", "--set", "workloads=[mine.py:Mine]", cwd=tmp_path)
    assert result.returncode == 1
    assert "EOFError: Ran out of input" in result.stderr


@pytest.mark.parametrize("registry", ["data", "spaces", "workloads"])
def test_registries_list_themselves(registry: str) -> None:
    entries = json.loads(called(registry, "--json"))
    assert len(entries) >= 2
    text = called(registry)
    assert all(next(iter(entry.values())) in text for entry in entries)


def test_an_unknown_optimizer_is_refused() -> None:
    """L-BFGS is one: it wants its loss computed anew within a step."""
    with refused("unknown-name", "'lbfgs'", "FILE.py:CLASS"):
        called("trial", "digits/mlp", "--optimizer", "lbfgs", "--batch-size", 8)


RAISING = """
from orchestrator.workloads.digits import DigitsMLP
def deep(batch):
    raise RuntimeError("no loss today")
class Raising(DigitsMLP):
    def loss(self, model, batch):
        return deep(batch)
"""


def test_what_ones_own_code_raises_shows_its_own_frames(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RAISING)
    trial = ("trial", "mine.py:Raising", "--optimizer", "sgd", "--batch-size", 8)
    short, full = (orchestrate(*extra, *trial, cwd=tmp_path) for extra in ([], ["--debug"]))
    assert (short.returncode, full.returncode) == (1, 1)
    for line in ("return deep(batch)", "RuntimeError: no loss today"):
        assert line in short.stderr
        assert line in full.stderr
    assert "loop.py" not in short.stderr
    assert "loop.py" in full.stderr


def test_quietly_there_are_answers_and_errors_only(tmp_path: Path) -> None:
    sweep = ("sweep", "--no-ray", "--out", tmp_path / "run", "--json", "--set", "batch_sizes=[64]")
    few = ("--set", "recipes=[sgd]", "--set", "search.trials=1", "--set", "budget={steps: 20}")
    result = orchestrate("--quiet", *sweep, *few)
    assert result.returncode == 3
    assert result.stderr == ""
    assert json.loads(result.stdout)[0]["batch_size"] == 64
    assert_refused(orchestrate("--quiet", "sweep", "quikstart"), "unknown-name", "'quikstart'")


@pytest.mark.parametrize(
    "line",
    [
        "report RUN --json --methods",
        "report RUN --table csv -o page.html",
        "plan --devices 2 --price 3",
        "trial digits/mlp --optimizer sgd --batch-size 8 --stack 2 --ranks 2",
        "init --slurm --kind language",
        "import runs.csv --guess --out RUN",
    ],
)
def test_options_of_which_one_would_have_no_effect_are_refused(line: str) -> None:
    with refused("not-together"):
        called(*line.split())
    with refused("missing-option", "behind `get`"):
        called("data", "--data-dir", "folder", "get", "sympy")
    with refused("missing-option", "--devices"):
        called("plan", "--keep", "run")
