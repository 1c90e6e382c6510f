"""Imports go down (docs/architecture.md has the floors); heavy libraries stay behind one folder."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent / "orchestrator"

FLOORS = {
    "api": 10,
    "cli": 9,
    "cluster": 8,
    "sweeping": 7,
    "report": 6,
    "analysis": 5,
    "planning": 4,
    "results": 3,
    "search": 3,
    "training": 3,
    "programs": 3,
    "workloads": 2,
    "noise": 1,
    "files": 1,
    "records": 0,
}
ONLY_IN = {"ray": "cluster", "plotly": "report", "optuna": "search", "typer": "cli"}
WITHOUT_TORCH = ("results", "analysis", "report", "search", "records", "files", "cli")
# `workloads` is a link, which rglob does not follow.
FILES = [
    path
    for pattern in ("**/*.py", "workloads/**/*.py")
    for path in ROOT.glob(pattern)
    if path != ROOT / "__init__.py"
]


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Dotted names imported anywhere in the file, but for type checking only."""
    tree = tree_of(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
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


def test_imports_go_down() -> None:
    wrong = []
    for path in FILES:
        here = part_of(path)
        for name in imports(path):
            library, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if library == "orchestrator" and other not in ("", here):
                wrong += [f"{path} imports {name}"] * (FLOORS[other] >= FLOORS[here])
            elif library in ONLY_IN and here != ONLY_IN[library]:
                wrong.append(f"{path} imports {name}, which belongs to {ONLY_IN[library]}/")
            elif library == "torch" and here in WITHOUT_TORCH and path != ROOT / "cli" / "trial.py":
                wrong.append(f"{path} imports torch")
    assert not wrong


def test_no_file_needs_one_that_needs_it() -> None:
    """Neither at once nor later, when a function is called."""
    files = {name_of(path): path for path in FILES}
    needs = {
        name: {other for other in imports(path) | from_packages(path) if other in files} - {name}
        for name, path in files.items()
    }
    # A package's own file only lists what is in it.
    lists = {name for name, path in files.items() if path.name == "__init__.py"}
    left = {name: others - lists for name, others in needs.items() if name not in lists}
    while leaves := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in leaves}
    assert not left, "these files need each other"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def from_packages(path: Path) -> set[str]:
    """Modules that are imported as names of their package."""
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_part_has_a_floor() -> None:
    assert {part_of(path) for path in FILES} == set(FLOORS)


def test_every_file_is_in_the_tree() -> None:
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    tree = page.partition("## The tree")[2].partition("workloads/")[0]
    files = [path for path in FILES if "workloads" not in path.parts and path.name[0] != "_"]
    assert sorted(re.findall(r"\w+\.py\b", tree)) == sorted(path.name for path in files)


def test_a_word_means_one_thing() -> None:
    """Adapters to two trainers have the same names; all other classes have names of their own."""
    trees = [tree_of(path) for path in FILES]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    twice = {name for name, count in Counter(classes).items() if count > 1 and name[0] != "_"}
    assert twice == {"NoiseScaleCallback", "ReportCallback"}
    table = (ROOT.parent / "docs" / "glossary.md").read_text().partition("## Words of the code")[2]
    words = re.findall(r"^\| (\w+) \|", table.partition("\n## ")[0], re.MULTILINE)[1:]
    used = {
        part
        for tree in trees
        for node in ast.walk(tree)
        for name in (getattr(node, kind, None) for kind in ("id", "arg", "attr", "name"))
        for part in re.findall(r"[A-Z]?[a-z]+", str(name))
    }
    assert words == sorted(words)
    assert {*words} <= {part.lower() for part in used}, "words that the code does not use"


HEAVY = """
import sys
import orchestrator.cli
assert not {"torch", "ray", "plotly", "pyarrow", "scipy", "numpy"} & {*sys.modules}, "cli"
import orchestrator.cluster.board
assert not {"torch", "pandas", "scipy", "pydantic"} & {*sys.modules}, "board"
import orchestrator.search
assert not {"optuna"} & {*sys.modules}, "search"
import orchestrator.cluster.sweeps, orchestrator.sweeping.tracking, orchestrator.cluster.gang
assert not {"mlflow", "wandb", "tensorboardX"} & {*sys.modules}, "trackers"
"""


def test_heavy_libraries_are_imported_by_those_who_need_them() -> None:
    subprocess.run([sys.executable, "-c", HEAVY], check=True)
