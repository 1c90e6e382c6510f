"""What was measured is told, whatever goes wrong with what is said about it."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import TINY, ended, first_trials, refused, train_all
from test_faults import made
from typer.testing import CliRunner

from orchestrator import sweep
from orchestrator.cli import answers, app
from orchestrator.planning.sweep import Sweep
from orchestrator.records import BadInput
from orchestrator.report import panel
from orchestrator.results import frontier_of

pytestmark = pytest.mark.dear


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    train_all(*made(path))
    return path


def fails(*_: Any, **__: Any) -> NoReturn:
    raise ZeroDivisionError("by nothing")


SAID = re.compile(r"this program made a mistake \(ZeroDivisionError: by nothing, test_mistakes")


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (arguments, result.output, result.exception)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_a_session_writes_the_frontier_first(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["orchestrator.report"], "write_report_of", fails)
    monkeypatch.setattr(answers, "answers_in_words", fails)
    (trained / "frontier.csv").unlink(missing_ok=True)
    said = command("resume", trained, "--no-ray", "--yes")
    assert len(SAID.findall(said)) == 2
    assert "9,984" in said, "the table of the frontier"
    assert len((trained / "frontier.csv").read_text().splitlines()) == 3


def test_a_part_of_the_page_fails_alone(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command("report", trained)
    whole = places(trained)
    monkeypatch.setattr(panel, "answer_of", fails)
    groups = [replace(g, parts=(fails,)) if g.anchor == "trials" else g for g in panel.FOLDS]
    monkeypatch.setattr(panel, "FOLDS", groups)
    command("report", trained)
    page = (trained / "report.html").read_text()
    assert len(SAID.findall(page)) == 2
    assert whole - places(trained) == {"trials"}


def places(run: Path) -> set[str]:
    """The parts of the page."""
    return {*re.findall(r'class="fold" id="([\w-]+)"', (run / "report.html").read_text())}


def test_every_command_reads_a_study_that_was_never_measured(tmp_path: Path) -> None:
    """All its trials failed at once."""
    run, planned = made(tmp_path / "run")
    for trial in first_trials(planned.studies[0], planned.sweep.seed):
        run.write(ended(trial, "failed", error="no"))
    for study in planned.studies:
        run.put_together(study.key, finished=True)
    archive, compact, imported = (tmp_path / name for name in ("archive", "compact", "imported"))
    command("export", run.place, archive)
    command("export", "--compact", run.place, compact)
    command("import", archive, "--out", imported)
    for name, *options in (["frontier"], ["frontier", "--json"], ["status", "--json"], ["report"],
                           ["report", "--json"], ["best", "val/error"], ["advise"]):  # fmt: skip
        for place in (run.place, compact, imported):
            command(name, place, *options)
    command("compare", run.place, compact)
    assert train_all(run, planned) == 6, "all are tried again"
    assert len(frontier_of(run)) == 2


@pytest.mark.parametrize("name", ["torch", "orchestrator", "class", "json", "a" * 250])
def test_start_files_hide_no_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", name])
    assert isinstance(result.exception, BadInput)
    assert not [*tmp_path.iterdir()]


def test_a_description_that_contains_itself_is_refused() -> None:
    endless: dict[str, Any] = {**TINY}
    endless["more"] = endless
    with refused("too-many", 100):
        sweep(endless, ray=False)


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x"])
def test_names_are_no_formulas(name: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        Sweep.model_validate({**TINY, "recipes": [{"name": name, "optimizer": "sgd"}]})
