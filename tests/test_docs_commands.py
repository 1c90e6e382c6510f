"""Commands and examples of the documentation, given one after another as a reader gives them.

They train without Ray, as test_sweep_end_to_end.py has sweeps on it. No page has its steps timed
(`plan --calibrate`), which benchmarks/plan.py does.
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import warm
from conftest import orchestrate
from test_archive import write_study, write_trial
from test_docs import COMMANDS, blocks

from orchestrator.cli.options import DIFFER, DONE

pytestmark = pytest.mark.slow

ELSEWHERE = {
    "branches", "bring-your-script", "bring-your-training", "cluster", "CONTRIBUTING", "python",
    "your-own-workload",
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
    "name": "my_sweep", "workloads": ["digits/mlp"], "goals": ["val/error < 0.2"],
    "recipes": ["sgd", "momentum"], "batch_sizes": [16, 64, 256, 1024], "search": {"trials": 4},
    "budget": {"steps": 200}, "repeats": {"count": 2, "evaluate": {"noise_scale": True}},
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
        sweep(folder, "second", "--set", "seed=1", "--set", "batch_sizes=[16, 64]")
    for line in GIVEN[page]:
        if page == "README" and "runs/again" in line:  # made between the commands that it gives
            shutil.copytree(folder / "runs/my_sweep", folder / "runs/again")
        _, *words = (PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True))
        if ">" in words:
            words = words[: words.index(">")]
        if words[0] == "sweep":
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


def test_a_run_is_asked_from_python(assumed: Path, tmp_path: Path) -> None:
    """The README's other example is the workload that the page on the noise scale trains."""
    shutil.copytree(assumed, tmp_path / "reader")
    (code,) = (code for place, code in blocks("python") if "README" in place and "sweep(" in code)
    (tmp_path / "reader/asked.py").write_text(code.replace(".show()", ".to_json()"))  # no browser
    done = warm.run(["asked.py"], tmp_path / "reader")
    assert done.returncode == 0, done.stderr
