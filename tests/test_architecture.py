"""Imports go down the floors of the design, and each heavy library stays behind one folder."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "orchestrator"

FLOORS = {
    "cli": 6,
    "lr_schedules": 1,
    "terminal": 3,
    "answers": 5.5,
    "plan": 5,
    "cluster": 4,
    "report": 4,
    "studies": 4,
    "growth": 5,
    "analysis": 3,
    "sweep": 3,
    "results": 2,
    "search": 2,
    "training": 2,
    "progress": 2,
    "workloads": 1,
    "imports": 0.5,
    "records": 0,
    "places": 0.5,
    "yaml_files": 1,
}
ONLY_IN = {"ray": "cluster", "plotly": "report", "optuna": "search", "typer": "cli"}
WITHOUT_TORCH = ("results", "analysis", "report", "search", "records", "terminal", "answers", "cli")
# `workloads` is a link, which rglob does not follow.
FILES = [
    path
    for pattern in ("**/*.py", "workloads/**/*.py")
    for path in ROOT.glob(pattern)
    if path != ROOT / "__init__.py"
]


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names imported anywhere in the file, but for type checking only."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path: Path) -> None:
    here = part_of(path)
    for name in imports(path):
        library, _, rest = name.partition(".")
        if library == "orchestrator" and rest:
            other = rest.split(".")[0]
            assert other == here or FLOORS[other] < FLOORS[here], f"{here} imports {name}"
        if library in ONLY_IN and here != ONLY_IN[library]:
            raise AssertionError(f"{here} imports {name}, which belongs to {ONLY_IN[library]}/")
        if here in WITHOUT_TORCH and path != ROOT / "cli" / "trial.py":
            assert library != "torch", f"{here} imports torch"


def test_every_part_has_a_floor() -> None:
    assert {part_of(path) for path in FILES} == set(FLOORS)


def test_nothing_of_a_tracker_is_imported_unless_asked_for() -> None:
    assert not {"mlflow", "wandb", "tensorboardX"} & loaded_by("run", "tracking", "gang")


def test_the_board_loads_next_to_nothing() -> None:
    assert not {"torch", "pandas", "scipy", "pydantic"} & loaded_by("board")


def loaded_by(*modules: str) -> set[str]:
    names = ", ".join(f"orchestrator.cluster.{module}" for module in modules)
    code = f"import sys, {names}; print(*{{n.split('.')[0] for n in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())
