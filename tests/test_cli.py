import json
import subprocess
import sys

import pytest
from conftest import orchestrate


def test_help_imports_nothing_heavy() -> None:
    """Which is what keeps it within half a second."""
    code = (
        "import sys, orchestrator.cli;"
        "print({'torch', 'ray', 'plotly', 'pyarrow', 'scipy', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()", result
    assert "sweep" in orchestrate("--help").stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trial_by_hand(ranks: int) -> None:
    result = orchestrate(
        "trial", "digits/mlp", "--optimizer", "momentum", "--batch-size", 37, "--steps", 5,
        "--ranks", ranks, "--micro-batch", 8, "--set", "learning_rate=1e-2", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["status"], answer["steps"], len(answer["ranks"])) == ("exhausted", 5, ranks)
    assert answer["params"]["learning_rate"] == 0.01
    assert answer["measurements"][0]["step"] == 0
    assert answer["measurements"][-1].keys() >= {"step", "val/error", "val/loss", "batch/loss"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trial", "digits/mlp", "--optimizer", "sdg", "--batch-size", "8"], "Did you mean 'sgd'"),
        (["trial", "digits/mlp", "--optimizer", "sgd", "--batch-size", "1401"], "1401 is more"),
        (["trial", "digits/mlp", "--optimizer", "sgd", "--batch-size", "0"], "--batch-size"),
        (
            ["trial", "digits/mlp", "--optimizer", "sgd", "--batch-size", "8", "--set", "lr=1"],
            "metaparameter of 'sgd': 'lr'",
        ),
        (["frontier", "/nonexistent"], "is not a run"),
        (["swep"], "Did you mean 'sweep'"),
    ],
)
def test_mistakes_get_one_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = orchestrate(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("registry", ["workloads", "spaces"])
def test_registries_list_themselves(registry: str) -> None:
    entries = json.loads(orchestrate(registry, "--json").stdout)
    assert len(entries) >= 2
    text = orchestrate(registry).stdout
    assert all(next(iter(entry.values())) in text for entry in entries)
