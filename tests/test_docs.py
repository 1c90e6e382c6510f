"""What the documentation says, done word for word."""

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import torch
import typer.main
import warm
from conftest import ROOT, TINY, files_of_repository, made, orchestrate, train_all

from orchestrator.cli import app
from orchestrator.files.yaml_files import parse_yaml, read_yaml
from orchestrator.planning import studies
from orchestrator.planning.branch_file import FOLDER, BranchFile
from orchestrator.planning.schema import schema_of
from orchestrator.planning.sweep_file import SWEEPS, load_sweep, validated, validated_as
from orchestrator.records import plain
from orchestrator.records.lr_schedules import DECAYS
from orchestrator.report.panel import FOLDS
from orchestrator.results import best_of
from orchestrator.search import known_spaces
from orchestrator.training import GENERAL
from orchestrator.training.library_optimizers import LIBRARY
from orchestrator.training.optimizers import OPTIMIZERS
from orchestrator.workloads import REGISTRY, Workload, load_workload
from orchestrator.workloads.data.catalogue import CATALOGUE

DOCS = ROOT / "docs"
WORKLOADS = (DOCS / "workloads.md").read_text(encoding="utf-8")

BUDGET = {"steps": "{:,} steps", "epochs": "{:,} epochs", "at_least_steps": "at least {:,} steps"}


def test_links_lead_somewhere() -> None:
    broken = []
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.glob("*.ipynb")]:
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


ENDS = (".md", ".ipynb")
"""Of a page: the site makes one of a notebook, too."""


def test_every_document_that_is_named_is_in_the_repository() -> None:
    missing = []
    for path in files_of_repository():
        if path.suffix in {".py", ".md", ".yaml", ".yml", ".toml"} and (ROOT / path).is_file():
            for name in re.findall(r"[\w./-]*\w\.md\b", (ROOT / path).read_text()):
                places = (ROOT, DOCS, (ROOT / path).parent)
                files = [(place / name).with_suffix(end) for place in places for end in ENDS]
                if not any(file.exists() for file in files):
                    missing.append(f"{path}: {name}")
    assert not missing


def test_every_optimizer_and_every_setting_is_named() -> None:
    page = (DOCS / "recipes.md").read_text()
    searched, others = (names.split() for names in re.findall(r"`([\w\s]{50,})`", page))
    assert sorted(searched) == known_spaces()
    assert {*OPTIMIZERS} <= {*searched}
    assert {*map(plain, searched + others)} == {*OPTIMIZERS, *LIBRARY}
    assert {*DECAYS, *GENERAL} <= {*re.findall(r"\w+", page)}
    assert {name for shape in DECAYS.values() for name in shape.defaults} <= GENERAL.keys()


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


@pytest.mark.parametrize("name", ["cooldown", "gallery", "quickstart", "holding", "forecast"])
def test_trials_of_sweeps_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "rehearse_all", lambda *_: ())
    planned = studies.plan(load_sweep(SWEEPS / f"{name}.yaml")).studies
    trials, repeats = sum(s.trials for s in planned), sum(s.most_repeats for s in planned)
    (row,) = re.findall(rf"^\| `{name}.yaml` .+", WORKLOADS, re.M)
    assert re.search(rf"\| {trials:,}, and (up to )?{repeats:,} repeats \|", row)


def test_groups_of_the_report_are_told_in_its_order() -> None:
    told = re.findall(r"^\| (.+) \(`#([\w-]+)`\) \|", (DOCS / "report.md").read_text(), re.M)
    first_ten = [*((fold.title, fold.anchor) for fold in FOLDS), ("Frontier", "frontier")]
    assert told[:10] == first_ten


PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
LANGUAGES = {"console", "diff", "python", "sh", "text", "yaml"}
"""`text` and `console` show what is printed."""

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)


def blocks(*languages: str) -> list[tuple[str, str]]:
    """The blocks in these languages: where each is, and what it holds."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            assert block[1] in LANGUAGES, f"{page.name}: ```{block[1]}"
            if block[1] in languages:
                line = text.count("\n", 0, block.start()) + 1
                found.append((f"{page.relative_to(ROOT)}:{line}", block[2]))
    return found


@pytest.mark.parametrize(("place", "code"), blocks("python"))
def test_python_of_the_pages_compiles(place: str, code: str) -> None:
    ast.parse(code, place)  # which takes a `return` without its function


OF_SWEEPS = jsonschema.Draft202012Validator(schema_of("sweep"))
REST = {"name": "page", "workloads": ["digits/mlp"], "recipes": ["sgd"], "batch_sizes": [8]}


@pytest.mark.parametrize(
    ("place", "text"), [block for block in blocks("yaml") if "CONTRIBUTING" not in block[0]]
)
def test_files_of_the_pages_are_as_a_sweep_or_branch_file_may_be(place: str, text: str) -> None:
    """A part of a file is put into one that has the rest."""
    document = parse_yaml(textwrap.dedent(text), place)
    if "trunk" in document:
        document = {"name": "page", **document}
        validated_as(BranchFile, document, place)
        return
    if "space" in document:
        document = {"recipes": [{"name": "sgd", **document}]}
    if "more" in document:
        document = {"batch_sizes": [256, "full"], **document}
    validated(REST | document, place)
    OF_SWEEPS.validate(REST | document)


COMMANDS = [
    (place, line.removeprefix("$ "))
    for place, block in blocks("sh", "console")
    for line in re.sub(r"\\\n\s*", " ", block).splitlines()
    if re.match(r"(\$ )?orchestrate ", line)
]
IN_TEXT = [
    (page.name, command)
    for page in PAGES
    for command in re.findall(r"`(orchestrate [^`]+)`", BLOCK.sub("", page.read_text()))
]


PARSER: Any = typer.main.get_command(app)


@pytest.mark.parametrize(("place", "line"), sorted({*COMMANDS, *IN_TEXT}))
def test_commands_of_the_pages_exist(place: str, line: str) -> None:
    command = PARSER
    _, *words = shlex.split(line.partition(" > ")[0], comments=True)
    known = {option for each in command.params for option in each.opts}
    while words and words[0] in known:
        words.pop(0)
    if words and words[0] != "COMMAND" and not words[0].startswith("-"):
        assert words[0] in command.commands
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known |= {"--help"} | {
        option for each in command.params for option in [*each.opts, *each.secondary_opts]
    }
    given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
    assert given <= known
    if (place, line) in COMMANDS:
        command.make_context(line, words)  # all that it needs, each of the right kind


def test_targets_of_the_makefile_have_their_lines_of_help_and_pages_name_no_others() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^make (\S+)  ", helped.stdout, re.M) == phony.split()
    shown = {
        target for _, block in blocks("sh") for target in re.findall(r"^make ([\w-]+)", block, re.M)
    }
    assert shown <= {*phony.split()}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("reference")


def test_tables_and_schemas_are_as_the_code_has_them(reference: ModuleType) -> None:
    """If not: `make reference`."""
    for page in DOCS.glob("*.md"):
        assert page.read_text() == reference.filled(page.read_text()), page.name
    for path, kind in reference.SCHEMAS.items():
        assert path.read_text() == reference.schema_text(kind), path.name


def test_every_part_of_a_file_has_its_table(reference: ModuleType) -> None:
    """What branch files share with sweep files is in the tables of those."""
    shared = {*schema_of("sweep")["properties"]}
    for page, kind, others in (
        ("sweep-file.md", "sweep", set()),
        ("branch-file.md", "branch", shared),
    ):
        made = re.findall(r"<!-- made of ([\w.]+) -->", (DOCS / page).read_text())
        parts = {*reference._sections(kind)} - others
        assert {*made} == {kind, *(f"{kind}.{part}" for part in parts)}


def test_every_code_of_an_error_is_in_the_table() -> None:
    paths = [ROOT / path for path in files_of_repository() if path.suffix == ".py"]
    ours = [path.read_text() for path in paths if path.parts[len(ROOT.parts)] != "tests"]
    used = re.findall(r'\bcode(?:: str)? ?= ?"([a-z-]+)"', "".join(ours))
    table = (DOCS / "command-line.md").read_text().partition("## Error codes")[2]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.M) == sorted({*used})


@pytest.mark.parametrize("path", [*SWEEPS.glob("*.yaml"), *FOLDER.glob("*.yaml")], ids=str)
def test_the_schema_takes_what_is_right_and_nothing_mistyped(path: Path) -> None:
    (name,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", path.read_text(), re.M)
    schema = jsonschema.Draft202012Validator(json.loads((path.parent / name).read_text()))
    document = read_yaml(path)
    schema.validate(document)
    for mistyped in (
        {**document, "seeed": 0},
        {**document, "faults": {"max_failure": 1}},
        {**document, "resources": {"stack": "some"}},
        {key: value for key, value in document.items() if key != "name"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            schema.validate(mistyped)


def written_on(page: str) -> tuple[dict[str, str], list[str]]:
    """The files that a page writes, by name, and the commands that it gives."""
    files = re.findall(r"`([\w.]+)`:\n\n```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert len(dict(files)) == len(files)
    return dict(files), [line for block in blocks for line in block.splitlines()]


def follow(files: dict[str, str], commands: list[str], folder: Path, *more: str) -> str:
    """Writes the files, gives the commands, and returns what the last one printed. A sweep gets
    `more` words."""
    for name, content in files.items():
        (folder / name).write_text(content)
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "orchestrate"
        if arguments[0] == "sweep":
            arguments += ["--no-ray", "--set", "search.trials=2", *more]
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
assert len(EXAMPLES) == 4


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split()[2])
def test_training_code_is_brought_with_few_lines(example: str, tmp_path: Path) -> None:
    """Exit code 0: the smallest and the largest batch size reached their goal."""
    had, added = (written_on(part)[0] for part in example.split("### What you add"))
    workload, sweep = (added[name].splitlines() for name in added)
    assert "orchestrator" not in "".join(had.values())
    assert len([line for line in workload if line]) <= 15
    assert len(sweep) <= 8
    sizes = re.sub(", .*,", ",", re.search(r"^batch_sizes: (.*)$", "\n".join(sweep), re.M)[1])
    ends = ("--set", f"batch_sizes={sizes}")
    said = follow(had | added, written_on(example)[1], tmp_path, *ends)
    assert "not reached" not in said


@pytest.mark.dear
def test_other_readers_and_our_own_calls_find_the_same(
    tmp_path: Path, sweep_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    averaged = {"name": "sgd", "space": {"ema_decay": 0.9}}  # has columns of its own
    file = sweep_file(recipes=[averaged, "momentum"], stop={"at_goal": False})
    run, planned = made(tmp_path / "runs/quickstart", load_sweep(file))
    train_all(run, planned)
    # Trials on their own and put together, side by side.
    run.put_together(planned.studies[0].key, finished=True)
    run.put_together(planned.studies[3].key, finished=True)
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
    (folder / "code.py").write_text(code)
    done = warm.run(["code.py"], folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("title", "package"),
    [
        pytest.param("", "torch", marks=pytest.mark.dear),
        pytest.param(' title="Hugging Face"', "transformers", marks=pytest.mark.slow),
        pytest.param(' title="Lightning"', "lightning", marks=pytest.mark.slow),
    ],
)
def test_a_noise_scale_is_measured_with_few_lines(title: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    (code,) = re.findall(rf"```python{title}\n(.*?)```", NOISE, re.DOTALL)
    assert len([line for line in code.splitlines() if line.endswith("# added")]) <= 10
    assert "examples per step are nearly free" in run_code(code, tmp_path)


@pytest.mark.slow
def test_from_a_training_to_a_schedule(tmp_path: Path) -> None:
    page = (DOCS / "branches.md").read_text()
    described, code = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("yaml", "python")
    )
    smaller = described.replace("10000", "5000").replace("1, 2, 4, 8", "1, 4")
    smaller = smaller.replace("seeds: 8", "seeds: 4")
    assert len(described) - len(smaller) == 7
    (tmp_path / "mine.yaml").write_text(smaller)
    (command,) = re.findall(r"^orchestrate (branch mine.*)$", page, re.MULTILINE)
    done = orchestrate(*command.split(), "--no-ray", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "After 160 examples: " in said
    assert "Central schedule, " in said
    printed = run_code(code, tmp_path)
    assert "After 160 examples: " in printed
    assert re.search(r"^0:8( \d+:\d+)*$", printed, re.MULTILINE)


NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
FIGURE = "application/vnd.plotly.v1+json"


def outputs_of(notebook: Path) -> list[list[dict[str, Any]]]:
    """What each code cell shows; of figures the names of their curves, as all else depends on how
    they are drawn."""
    cells = json.loads(notebook.read_text())["cells"]
    return [
        [compared(output) for output in cell["outputs"]]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def compared(output: dict[str, Any]) -> dict[str, Any]:
    figure = output.get("data", {}).get(FIGURE)
    return {"curves": [line["name"] for line in figure["data"]]} if figure else output


@pytest.mark.slow
def test_its_cells_still_come_to_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = tmp_path / "again.ipynb"
    script = Path(__file__).with_name("notebook.py")
    monkeypatch.setenv("NOTEBOOK_PICTURES", "0")
    made = warm.run([str(script), str(NOTEBOOK), str(again)], tmp_path)
    assert made.returncode == 0, made.stderr
    both = zip(outputs_of(NOTEBOOK), outputs_of(again), strict=True)
    for number, (shown, now) in enumerate(both, start=1):
        assert now == shown, f"cell {number}: write the notebook anew (CONTRIBUTING.md)"


TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## (Add .*?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
"""Heading -> how to add something."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository as it stands, without what git ignores."""
    for path in files_of_repository():
        to = tmp_path / "copy" / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, to, follow_symlinks=False)
    return tmp_path / "copy"


def apply(section: str, folder: Path) -> None:
    """Writes the files of a section, and makes its changes to others. A block belongs to the
    file that was named last."""
    for file, kind, block in re.findall(r"`([\w/]+\.\w+)`|```(\w+)\n(.*?)```", section, re.DOTALL):
        if file:
            path = folder / file
        elif kind == "diff":
            lines = block.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            text = path.read_text()
            assert text.count(before) == 1, f"{path.name} must have once:\n{before}"
            path.write_text(text.replace(before, after))
        elif kind != "sh":
            assert not path.exists(), f"{path} is there already"
            path.write_text(block)


DO = """
import os, runpy, shlex, sys
# Once for all commands:
import torch, hypothesis.strategies, jsonschema, pytest, orchestrator.planning.studies
import orchestrator.report, orchestrator.sweeping.local, orchestrator.sweeping.session

for line in sys.argv[1:]:
    print(line, flush=True)
    if (child := os.fork()) == 0:
        sys.argv = shlex.split(line)
        runpy.run_module({"orchestrate": "orchestrator.cli"}.get(sys.argv[0], sys.argv[0]),
                         run_name="__main__", alter_sys=True)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(code)
"""


def run(*command: object, folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}{result.stderr}"


@pytest.mark.slow
def test_what_is_added_works(copy: Path, sweep_file: Callable[..., Path]) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*.py")}
    for section in SECTIONS.values():
        apply(section, copy)
    written = [path for path in copy.rglob("*.py") if before.get(path) != path.read_bytes()]
    assert len(written) == 7
    for check in (["check"], ["format", "--check"]):
        run("-m", "ruff", *check, *written, folder=copy)
    train_all(*made(copy / "runs" / "quickstart", load_sweep(sweep_file())))
    lines = [
        line
        for section in SECTIONS.values()
        for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) == 7
    run("-c", DO, *lines, folder=copy)
    report = copy / "runs" / "quickstart" / "report.html"
    assert "Examples to goal against batch size" in report.read_text()


# Commands of some pages, given one after another as a reader gives them. They train without Ray, as
# test_sweep_end_to_end.py has sweeps on it; benchmarks/plan.py has steps timed.

FOLLOWED = ("README", "devices", "report", "workloads")
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


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED)
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
    if page == "README":
        (code,) = (code for place, code in blocks("python") if page in place and "sweep(" in code)
        run_code(code.replace(".show()", ".to_json()"), folder)  # no browser
