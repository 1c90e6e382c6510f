"""What the documentation says, done word for word."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from conftest import ROOT, files_of_repository, orchestrate, train_all
from pydantic import BaseModel

from orchestrator.planning.branch_file import BranchFile
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import SWEEPS, load_sweep
from orchestrator.results import Run, best_of
from orchestrator.workloads import REGISTRY, Workload, load_workload
from orchestrator.workloads.data import CATALOGUE

DOCS = ROOT / "docs"
WORKLOADS = (DOCS / "workloads.md").read_text(encoding="utf-8")

BUDGET = {
    "steps": "{:,} steps",
    "epochs": "{:,} epochs",
    "at_least_steps": "at least {:,} steps",
}


def test_links_lead_somewhere() -> None:
    broken = []
    for path in [*ROOT.glob("*.md"), *DOCS.glob("*.md")]:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)]+)\)", text):
            name, _, heading = link.partition("#")
            target = path.parent / name if name else path
            if "://" not in link and not (target.exists() and heading in _headings(target)):
                broken.append(f"{path.name}: {link}")
    assert not broken


def _headings(path: Path) -> list[str]:
    """As links call them; an empty one is the beginning of the file."""
    if path.suffix != ".md":
        return [""]
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return ["", *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)]


def test_every_document_that_is_named_is_in_the_repository() -> None:
    missing = []
    for path in files_of_repository():
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".toml"} and (ROOT / path).is_file():
            for name in re.findall(r"[\w./-]*\w\.md\b", (ROOT / path).read_text()):
                places = (ROOT, DOCS, (ROOT / path).parent)
                if not any((place / name).exists() for place in places):
                    missing.append(f"{path}: {name}")
    assert not missing


def test_every_workload_has_its_row() -> None:
    rows = re.findall(r"^\| `(\S+)` \| [^|]+ \| ([\d,]+) \| `(.+?)` \| (.+) \|$", WORKLOADS, re.M)
    assert sorted(rows) == sorted(_row(name, load_workload(name)) for name in REGISTRY)


def _row(name: str, workload: Workload) -> tuple[str, str, str, str]:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in workload.model().parameters())
    budget = ", ".join(BUDGET[key].format(value) for key, value in workload.budget.items())
    return name, f"{parameters:,}", workload.goal, budget


@pytest.mark.parametrize("name", REGISTRY)
def test_every_family_has_its_evaluation_grid(name: str) -> None:
    headings = re.split(r"^## ", WORKLOADS, flags=re.M)
    (section,) = (text for text in headings if f"`{name.partition('/')[0]}`" in text.split("\n")[0])
    grid = re.search(r"Evaluation grid\W+spacing ([\d.]+)[,;] min_examples (.*?)\.\n", section)
    assert grid
    assert float(grid[1]) == REGISTRY[name].evaluation_spacing
    assert f"{REGISTRY[name].evaluation_min_examples:,}" in grid[2].split()


def test_data_sets_and_sweeps_are_mentioned() -> None:
    assert all(f"| `{name}` | " in WORKLOADS for name in CATALOGUE)
    assert all(f"| `{path.name}` | " in WORKLOADS for path in SWEEPS.glob("*.yaml"))


def every_key(part: type[BaseModel], within: str = "") -> dict[str, Any]:
    """Key of a sweep file -> its default."""
    found: dict[str, Any] = {}
    for name, field in part.model_fields.items():
        kinds = get_args(field.annotation) or [field.annotation]
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        key = f"{within}{name}"
        if nested and within != "recipes.":
            found |= every_key(nested[0], f"{key}.")
        else:
            found[key] = field.default
    return found


def test_every_key_of_a_sweep_file_has_its_row() -> None:
    page = (DOCS / "sweep-file.md").read_text()
    rows = re.findall(r"^\| (`.+?) \| .+ \|(.*?)\|$", page, re.M)
    said: dict[str, str] = {}
    for keys, defaults in rows:
        names = re.findall(r"`([\w.]+)`", keys)
        said |= dict(zip(names, defaults.strip().split(", ") * len(names), strict=False))
    # What `orchestrate branch` makes of a branch file is no person's to write.
    known = {key: default for key, default in every_key(Sweep).items() if "branch" not in key}
    assert sorted(said) == sorted([*known, "recipes", "more"])
    for key, default in known.items():
        if isinstance(default, int | float | str):
            number = not isinstance(default, bool | str)
            assert said[key].strip("`") == (f"{default:g}" if number else str(default).lower())


def written_on(page: str) -> tuple[dict[str, str], list[str]]:
    """The files that a page writes, by name, and the commands that it gives."""
    files = re.findall(r"`([\w.]+)`:\n\n```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert len(dict(files)) == len(files)
    return dict(files), [line for block in blocks for line in block.splitlines()]


def follow(files: dict[str, str], commands: list[str], folder: Path) -> str:
    """Writes the files, gives the commands, and returns what the last one printed."""
    for name, content in files.items():
        (folder / name).write_text(content)
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "orchestrate"
        result = orchestrate(*arguments, cwd=folder)
        assert result.returncode == 0, (line, result.stderr)
    return result.stdout


@pytest.mark.slow
def test_your_own_workload_from_nothing(tmp_path: Path) -> None:
    files, commands = written_on((DOCS / "your-own-workload.md").read_text())
    assert (len(files), len(commands)) == (3, 4)
    assert all(len(content.splitlines()) < 60 for content in files.values())
    assert "reached" in follow(files, commands, tmp_path)
    assert (tmp_path / "runs" / "tumours" / "report.html").exists()


BRING = (DOCS / "bring-your-training.md").read_text()
EXAMPLES = [text for text in BRING.split("\n## ") if "### What you add" in text]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split()[2])
def test_training_code_is_brought_with_few_lines(example: str, tmp_path: Path) -> None:
    """Exit code 0: every study reached its goal."""
    had, added = (written_on(part)[0] for part in example.split("### What you add"))
    workload, sweep = (added[name].splitlines() for name in added)
    assert "orchestrator" not in "".join(had.values())
    assert len([line for line in workload if line]) <= 15
    assert len(sweep) <= 8
    said = follow(had | added, written_on(example)[1], tmp_path)
    assert "not reached" not in said


def test_four_kinds_of_training_are_brought() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.dear
def test_other_readers_and_our_own_calls_find_the_same(
    tmp_path: Path, sweep_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(load_sweep(sweep_file(recipes=["sgd", "momentum"], stop={"at_goal": False})))
    run = Run(tmp_path / "runs/quickstart")
    run.create(planned.sweep.resolved(), planned.studies, {})
    train_all(run, planned)
    # Trials on their own and put together, side by side.
    run.compact(planned.studies[0].key, over=True)
    run.compact(planned.studies[3].key, over=True)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "results.md").read_text(), re.DOTALL):
        exec(code, found)
    ours = sorted((row.recipe, row.batch_size, row.value) for row in best_of(run, "val/error"))
    theirs = {
        "pandas": [(*key, value) for key, value in found["by_pandas"].items()],
        "polars": found["by_polars"].select("recipe", "batch_size", "val/error").rows(),
        "duckdb": found["by_duckdb"],
        "pyarrow": [
            (row["recipe"], row["batch_size"], row["val/error_min"])
            for row in found["by_pyarrow"].to_pylist()
        ],
    }
    for reader, rows in theirs.items():
        assert sorted(rows) == ours, reader
    assert len(found["rows"]) == len(ours) == 4
    assert [row.within for row in found["bests"]] == 4 * ["epochs=2", None]


NOISE = (DOCS / "noise-scale.md").read_text()


def run_code(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.dear
def test_a_plain_loop_measures_its_noise_scale(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", NOISE, re.DOTALL)
    assert re.search(r"^noise scale .* examples per step are nearly free", run_code(code, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["huggingface", "lightning"])
def test_other_trainers_do_with_few_lines(library: str, tmp_path: Path) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(library, library))
    (code,) = re.findall(rf"```python {library}\n(.*?)```", NOISE, re.DOTALL)
    lines = code.splitlines()
    before = [line for line in lines if not line.endswith("# added")]
    assert len(lines) - len(before) <= 10
    run_code("\n".join(before), tmp_path)
    assert "nearly free" in run_code(code, tmp_path)


@pytest.mark.slow
def test_from_a_training_to_a_schedule(tmp_path: Path) -> None:
    page = (DOCS / "branches.md").read_text()
    described, code = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("yaml", "python")
    )
    (tmp_path / "mine.yaml").write_text(described)
    (command,) = re.findall(r"^orchestrate (branch mine.*)$", page, re.MULTILINE)
    done = orchestrate(*command.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "After 160 examples: " in said
    assert "Central schedule, " in said
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "After 160 examples: " in result.stdout
    assert re.search(r"^0:8( \d+:\d+)*$", result.stdout, re.MULTILINE)


def test_every_key_of_a_branch_file_has_its_row() -> None:
    page = (DOCS / "branches.md").read_text()
    said = {name for row in re.findall(r"^\| (`.+?) \|", page, re.M) for name in row.split("`")}
    for key in every_key(BranchFile):
        parts = key.split(".")
        assert {".".join(parts[: end + 1]) for end in range(len(parts))} & said, key
