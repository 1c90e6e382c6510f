"""What was measured is told, whatever goes wrong with what is said about it."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from conftest import TINY, refused, train_all
from test_faults import made
from typer.testing import CliRunner

from orchestrator import sweep
from orchestrator.cli import answers, app
from orchestrator.planning.sweep import Sweep
from orchestrator.records import BadInput
from orchestrator.report import panel

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
    ended = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert ended.exit_code == code, ended.output
    assert "Traceback" not in ended.output
    return " ".join(ended.output.split())


def test_a_session_writes_the_frontier_first(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["orchestrator.report"], "write_report_of", fails)
    monkeypatch.setattr(answers, "answers_in_words", fails)
    (trained / "frontier.csv").unlink(missing_ok=True)
    said = command("resume", trained, "--no-ray")
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


@pytest.mark.parametrize("name", ["torch", "orchestrator", "class", "json", "a" * 250])
def test_start_files_hide_no_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["init", name])
    assert isinstance(ended.exception, BadInput)
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
