"""What others wrote reaches a terminal as text: no control characters, no markup. JSON is exact."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_trial
from typer.testing import CliRunner

from orchestrator.cli import app, main, terminal
from orchestrator.cli.options import print_json
from orchestrator.cluster.progress import Progress
from orchestrator.records import CONTROLS, Study
from orchestrator.results import Run

HOSTILE = "[/red]:fire:\x1b[31m\r\x07\x7f\x9b2J\u202e"
SHOWN = r"[/red]:fire:\x1b[31m\r\x07\x7f\x9b2J\u202e"


@pytest.fixture
def study() -> Study:
    return replace(make_trial(goals=("val/error < 0.5",)).study, workload=HOSTILE, recipe=HOSTILE)


@pytest.fixture
def run(tmp_path: Path, study: Study) -> Run:
    """As an archive could have it."""
    run = Run(tmp_path / "run")
    run.create({"name": "x"}, [study], {})
    return run


@pytest.mark.dear
@pytest.mark.parametrize("command", ["status", "frontier", "best"])
def test_tables_show_names_as_text(run: Run, command: str) -> None:
    arguments = [command, str(run.place), *(["val/error"] if command == "best" else [])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.exception
    assert SHOWN in result.stdout
    assert set(CONTROLS.findall(result.stdout)) == {"\n"}
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    (row,) = found["studies"] if command == "status" else found
    assert row["recipe"] == HOSTILE


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_live_progress_shows_names_and_notes_as_text(
    study: Study, on_a_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    console = terminal.PlainConsole(stderr=True, force_terminal=on_a_terminal, width=200)
    monkeypatch.setattr(terminal, "console", console)
    progress = Progress([study, replace(study, workload="other")])
    progress.notes.append(HOSTILE)
    with terminal.showing(progress):
        terminal.say(f"said: {HOSTILE}\nline 2")
    assert f"said: {SHOWN}\n" in shown.getvalue()
    assert shown.getvalue().count(SHOWN) >= (3 if on_a_terminal else 2)
    assert not {"\x07", "\x7f", "\x9b", "\u202e"} & set(shown.getvalue())
    assert "\x1b[31m\r" not in shown.getvalue()


def test_errors_and_answers_are_text_and_keep_their_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["orchestrate", "status", f"a\n{HOSTILE}"])
    with pytest.raises(SystemExit, match="2"):
        main()
    terminal.answer(Path(f"{HOSTILE}\udcff"))
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: a\n{SHOWN} is not a run")
    assert printed.out == f"{SHOWN}\\udcff\n"


def test_json_is_exact_and_holds_no_character_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = {HOSTILE: ["größe 大\u2028\x85\ud800\n"]}
    print_json(document)
    printed = capsys.readouterr().out
    assert json.loads(printed) == document
    assert set(CONTROLS.findall(printed)) == {"\n"}
    assert "größe 大" in printed
