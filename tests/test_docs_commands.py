"""Commands and examples of the documentation, given one after another as a reader gives them.

They train without Ray, as test_sweep_end_to_end.py has sweeps on it. No page has its steps timed
(`plan --calibrate`), which benchmarks/plan.py does.
"""

import json
import shlex
import shutil
from itertools import product
from math import log2
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


ELSEWHERE_TRAINED = "batch_size,lr,seed,step,val_loss\n" + "".join(
    f"{size},{rate},0,{step},{2 + 3 * 2 ** (-step * rate * size / 500):.4f}\n"
    for size in (8, 16, 32, 64)
    for rate in (0.1, 0.2)
    for step in range(0, 1000, 50)
)


def published_models() -> str:
    """A row for each training, as its authors publish them."""
    lines = ["bs,lr,ti,smooth loss,val/loss,D,N"]
    for data, weights in product((2e9, 4e9, 8e9, 16e9), (1e8, 4e8)):
        best = 64 * (data / 2e9) ** 0.5
        for size, rate in product((16, 32, 64, 128, 256, 512), (0.0005, 0.001, 0.002, 0.004)):
            loss = 2 + 0.05 * log2(size / best) ** 2 + 0.1 * log2(rate / 0.0012) ** 2
            steps = round(data / 2048 / size)
            lines.append(f"{size},{rate},{steps},{loss},{loss + 0.1},{data:.0f},{weights:.0f}")
    return "\n".join(lines) + "\n"


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
    rules = {"keep": "sgd_sde", "at_batch_size": 64, "learning_rate": 0.1}
    recipes = ["sgd", {"name": "by_rule", "optimizer": "sgd", "rules": rules}]
    sweep(folder, "adam_rules", "--set", f"recipes={json.dumps(recipes)}")
    (folder / "runs.csv").write_text(ELSEWHERE_TRAINED)
    (folder / "steplaw_dense.csv").write_text(published_models())
    made = orchestrate("import", "steplaw_dense.csv", "--out", "runs/gpt", cwd=folder)
    assert made.returncode == 0, made.stderr
    (blobs,) = (code for place, code in blocks("python") if "class Blobs" in code)
    (folder / "mine.py").write_text(blobs.partition("\n\n\ntrained")[0])
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
        words, target = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
        if words[0] == "sweep":
            words.append("--no-ray")
        if "--calibrate" in words and words[0] == "plan":
            words.remove("--calibrate")
        words += [
            more for start, added in SHORTER.items() if line.startswith(start) for more in added
        ]
        if words[0] == "data" and shutil.which("apt-get") is None:
            pytest.skip("fetches a Debian package")
        done = orchestrate(*words, cwd=folder)
        expected = DIFFER if "runs/second" in words else DONE
        assert done.returncode == expected, (line, done.stderr)
        if target is not None:
            (folder / target).write_text(done.stdout)


def test_a_run_is_asked_from_python(assumed: Path, tmp_path: Path) -> None:
    """The README's other example is the workload that the page on the noise scale trains."""
    shutil.copytree(assumed, tmp_path / "reader")
    (code,) = (code for place, code in blocks("python") if "README" in place and "sweep(" in code)
    (tmp_path / "reader/asked.py").write_text(code.replace(".show()", ".to_json()"))  # no browser
    done = warm.run(["asked.py"], tmp_path / "reader")
    assert done.returncode == 0, done.stderr
