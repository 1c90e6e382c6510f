"""Commands and examples of the documentation, given one after another as a reader gives them.

Those of the README train on Ray, all others without it. No page has its steps timed
(`plan --calibrate`), which benchmarks/plan.py does.
"""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import orchestrate
from test_archive import write_study, write_trial
from test_docs import COMMANDS, blocks

from orchestrator.cli.options import DIFFER, DONE

pytestmark = pytest.mark.slow

ELSEWHERE = {
    "branches", "bring-your-training", "cluster", "CONTRIBUTING", "python", "your-own-workload",
}  # fmt: skip
"""Pages that have tests of their own."""

SHORTER = {
    "orchestrate sweep fashion_mnist_small": [
        "--set", "search.trials=1", "--set", "batch_sizes=[32]", "--set", "budget={steps: 60}",
        "--set", "goals=['val/error < 0.85']",
    ],
}  # fmt: skip
"""Added to commands that would train for longer than a test may."""

PLACEHOLDERS = {
    "RUN": "runs/quickstart", "A": "runs/my_sweep", "B": "runs/again", "DIR": "published",
    "linear_rule@256": "sgd@256",
}  # fmt: skip

SMALL = {
    "name": "my_sweep", "workloads": ["digits/mlp"], "goals": ["val/error < 0.1"],
    "recipes": ["sgd", "momentum"], "batch_sizes": [16, 64, 256, 1024], "search": {"trials": 6},
    "repeats": {"count": 3, "evaluate": {"noise_scale": True}},
}  # fmt: skip


def page_of(place: str) -> str:
    return Path(place.partition(":")[0]).stem


GIVEN: dict[str, list[str]] = {}
for place, line in COMMANDS:
    if page_of(place) not in ELSEWHERE:
        GIVEN.setdefault(page_of(place), []).append(line)


@pytest.fixture(scope="module")
def assumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs and files that the pages take for granted, all of them small."""
    folder = tmp_path_factory.mktemp("assumed")
    (folder / "my_sweep.yaml").write_text(json.dumps(SMALL))
    sweep(folder, "first")
    for name in ("quickstart", "my_sweep", "again", "forecast"):
        shutil.copytree(folder / "runs/first", folder / "runs" / name)
    (blobs,) = (code for place, code in blocks("python") if "README" in place and "Blobs" in code)
    (folder / "mine.py").write_text(blobs)
    study = write_study(folder / "published/mnist/simple_cnn/sgd/64")
    write_trial(study, 0, "global_step,val/classification_error\n10,0.5\n20,0.005\n")
    return folder


def sweep(folder: Path, name: str, *words: str) -> None:
    words = ("my_sweep.yaml", "--no-ray", "--out", f"runs/{name}", *words)
    made = orchestrate("sweep", *words, cwd=folder)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("page", sorted(GIVEN))
def test_commands_of_the_pages_succeed(
    page: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "reader"
    if page == "README":
        folder.mkdir()
    else:
        shutil.copytree(request.getfixturevalue("assumed"), folder)
    if page == "compare":
        sweep(folder, "second", "--set", "seed=1")
    for line in GIVEN[page]:
        if page == "README" and "runs/again" in line:  # made between the commands that it gives
            shutil.copytree(folder / "runs/my_sweep", folder / "runs/again")
        _, *words = (PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True))
        if ">" in words:
            words = words[: words.index(">")]
        if page != "README" and words[0] == "sweep":
            words.append("--no-ray")
        if words[0] == "plan":
            words.remove("--calibrate")
        words += [
            more for start, added in SHORTER.items() if line.startswith(start) for more in added
        ]
        if words[0] == "data" and shutil.which("apt-get") is None:
            pytest.skip("fetches a Debian package")
        done = orchestrate(*words, cwd=folder)
        expected = DIFFER if "runs/second" in words else DONE
        assert done.returncode == expected, (line, done.stderr)


def test_examples_in_python_run(assumed: Path, tmp_path: Path) -> None:
    shutil.copytree(assumed, tmp_path / "reader")
    for place, code in blocks("python"):
        if page_of(place) == "README":
            quiet = code.replace(".show()", ".to_json()")  # opens no browser
            done = subprocess.run(
                [sys.executable, "-c", quiet], cwd=tmp_path / "reader",
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (place, done.stderr)
