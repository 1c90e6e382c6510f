"""The commands of some pages, given one after another as a reader gives them.

They train without Ray, as test_sweep_end_to_end.py has sweeps on it. No page has its steps timed
(`plan --calibrate`), which benchmarks/plan.py does. test_docs.py parses the commands of all pages.
"""

import json
import shlex
import shutil
from pathlib import Path

import pytest
import warm
from conftest import TINY, orchestrate
from test_docs import COMMANDS, blocks

pytestmark = pytest.mark.slow

PAGES = ("README", "devices", "report", "workloads")
"""They have commands or options that no other test gives."""

SHORTER = {
    "sweep fashion_mnist_small": [
        "--set", "search.trials=1", "--set", "batch_sizes=[32]", "--set", "budget={steps: 60}",
        "--set", "goals=['val/error < 0.85']",
    ],
    "plan my_sweep.yaml": ["--set", "batch_sizes=[64]", "--set", "recipes=[sgd]"],
}  # fmt: skip
"""Added to commands that would train for longer than a test may."""

PLACEHOLDERS = {
    "RUN": "runs/my_sweep", "A": "runs/my_sweep", "B": "runs/again",
    "linear_rule@256": "sgd@256",
}  # fmt: skip


@pytest.fixture(scope="module")
def assumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs and files that the pages take for granted, all of them small."""
    folder = tmp_path_factory.mktemp("assumed")
    small = {**TINY, "name": "my_sweep", "batch_sizes": [16, 64, 256], "recipes": ["sgd", "adam"]}
    (folder / "my_sweep.yaml").write_text(json.dumps(small))
    for name in ("my_sweep", "again"):
        made = orchestrate(
            "sweep", "my_sweep.yaml", "--no-ray", "--out", f"runs/{name}", cwd=folder
        )
        assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_pages_succeed(
    page: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = tmp_path / "reader"
    if page == "README":
        folder.mkdir()
    else:
        shutil.copytree(request.getfixturevalue("assumed"), folder)
    for line in [line for place, line in COMMANDS if Path(place.partition(":")[0]).stem == page]:
        if page == "README" and "runs/again" in line:  # made between the commands that it gives
            shutil.copytree(folder / "runs/my_sweep", folder / "runs/again")
        _, *words = (PLACEHOLDERS.get(word, word) for word in shlex.split(line, comments=True))
        words += SHORTER.get(" ".join(words[:2]), [])
        if words[0] == "sweep":
            words.append("--no-ray")
        if "--calibrate" in words:
            words.remove("--calibrate")
        if words[0] == "data" and shutil.which("apt-get") is None:
            pytest.skip("fetches a Debian package")
        done = orchestrate(*words, cwd=folder)
        assert done.returncode == 0, (line, done.stderr)
        if "--images" in words:
            first, *_ = sorted((folder / "figures").iterdir())
            assert first.name == "001-steps-to-goal-against-batch-size.png"


def test_a_run_is_asked_from_python(assumed: Path, tmp_path: Path) -> None:
    """The README's other example is the workload that the page on the noise scale trains."""
    shutil.copytree(assumed, tmp_path / "reader")
    (code,) = (code for place, code in blocks("python") if "README" in place and "sweep(" in code)
    (tmp_path / "reader/asked.py").write_text(code.replace(".show()", ".to_json()"))  # no browser
    done = warm.run(["asked.py"], tmp_path / "reader")
    assert done.returncode == 0, done.stderr
