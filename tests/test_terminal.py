"""What others wrote reaches a terminal as text: no control characters, no markup. JSON is exact."""

import io
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from conftest import called, following, make_trial
from test_frontier import new_run
from test_rounds import begin, finish, make_study

from orchestrator.cli import answers, main, terminal
from orchestrator.cli.options import print_json
from orchestrator.records import CONTROLS, FinishedTrial, Outcome, Range, Study, Trial
from orchestrator.results import FrontierRow, RunFiles, frontier_of
from orchestrator.sweeping.progress import Progress

HOSTILE = "[/red]:fire:\x1b[31m\r\x07\x7f\x9b2J\u202e"
SHOWN = r"[/red]:fire:\x1b[31m\r\x07\x7f\x9b2J\u202e"


@pytest.fixture
def study() -> Study:
    return replace(make_trial(goals=("val/error < 0.5",)).study, workload=HOSTILE, recipe=HOSTILE)


@pytest.fixture
def run(tmp_path: Path, study: Study) -> RunFiles:
    """As an archive could have it."""
    return new_run(tmp_path / "run", study)


@pytest.mark.dear
@pytest.mark.parametrize("command", ["status", "frontier", "best"])
def test_tables_show_names_as_text(run: RunFiles, command: str) -> None:
    arguments = [command, run.place, *(["val/error"] if command == "best" else [])]
    shown = called(*arguments)
    assert SHOWN in shown
    assert set(CONTROLS.findall(shown)) == {"\n"}
    found = json.loads(called(*arguments, "--json"))
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
    monkeypatch.setenv(terminal.ERROR_FILE, "/dev/full")
    with pytest.raises(SystemExit, match="2"):
        main()
    terminal.answer(Path(f"{HOSTILE}\udcff"))
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error[not-a-run]: a\n{SHOWN} ")
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


@pytest.mark.parametrize("width", [50, 80, 120, 240])
def test_a_narrow_terminal_goes_without_columns_but_breaks_no_word(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = {"learning_rate": Range(low=1e-3, high=1, scale="log"), "momentum": 0.9}
    study = replace(make_trial(goals=("val/error < 0.5",)).study, space=space, recipe="nesterov")
    run = new_run(tmp_path, study)
    row = FrontierRow(
        workload=study.workload, recipe="nesterov", optimizer="nesterov", batch_size=32,
        goal="val/error < 0.5", reached=True, censored=False, steps=1234, examples=39_488,
        resolution=56, trial=78,
        params={"learning_rate": 0.123456, "momentum": 0.9}, trials={"reached": 1}, trials_used=1,
        warnings=("learning_rate 0.1235 is near the upper end, 1, of its range",),
    )  # fmt: skip
    shown = io.StringIO()
    out = terminal.PlainConsole(file=shown, width=width)
    monkeypatch.setattr(answers, "output", lambda: out)
    answers.print_frontier(run, [row], as_json=False)
    text = shown.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "digits/mlp, until val/error < 0.5" in text
    assert "1,234" in text
    assert "momentum" not in text.replace("nesterov", ""), "it was fixed"
    dropped = text.partition("No room for: ")[2].partition(". --json")[0]
    words = {
        "Metaparameters": ["learning_rate", "0.1235"], "Trial": ["78"],
        "Examples": ["39,488"], "±": ["56"],
    }  # fmt: skip
    for column, some in words.items():
        if column not in dropped:
            assert all(word in text.split() for word in some), column
    assert ("No room" in text) == (width < 80)
    assert "upper end" in " ".join(text.split())


def test_a_median_takes_its_room_from_columns_that_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = terminal.PlainConsole(file=(shown := io.StringIO()), width=40)
    monkeypatch.setattr(answers, "output", lambda: out)
    row = {"Median": "2,525 (2,180 to 2,925)", "Trial": "3", answers.POINT: "learning_rate 0.0059"}
    answers._print_fitting([row], numbers=("Median", "Trial"), shared={})
    assert f"{row['Median']}  learning_rate" in shown.getvalue()
    assert "No room for: Trial. --json" in shown.getvalue()


def test_progress_keeps_its_order_and_never_goes_backwards() -> None:
    """A trial that is set aside does not count as done before it is known that it won't go on."""
    director = begin(make_study(trials=2, budget_steps=3200, stop_dominated=True))
    (search,) = director.searches.values()
    done = []
    while (proposal := following(director)) is not None:
        last = "reached" if proposal.trial.index == 1 else "exhausted"
        fate = ("paused", proposal.limit) if proposal.limit else (last, 3000)
        director.record(finish(proposal.trial, fate))
        done.append(search.settled)
    assert director.done
    assert done == sorted(done)
    assert done[-1] == 2


@dataclass
class Course:
    """How far a study's search has come."""

    planned: int
    settled: int = 0
    may_repeat: int = 0
    best: int | None = None

    def frontier_step(self) -> int | None:
        return self.best


def train(progress: Progress, trial: Trial, steps: int, before: int = 0, pace: int = 100) -> None:
    """Trains it further at so many steps per second."""
    progress.start(trial)
    outcome = Outcome(status="paused", steps=before + steps, seconds=steps / pace, width=2)
    progress.stop(trial, replace(outcome, resumed_steps=before))


def test_how_long_is_left_is_told_by_studies_that_are_done() -> None:
    """Of ten trials, each is set aside after an eighth of its budget, and two go on."""
    study = make_trial(goals=("val/error < 0.5",), budget_steps=800).study
    studies = [replace(study, recipe=str(number), trials=10) for number in range(5)]
    progress, told = Progress(studies), []
    assert math.isnan(progress.seconds_left())
    for one in studies:
        course = Course(planned=10)
        trials = [Trial(study=one, index=index, seed=0, params={}) for index in range(10)]
        for trial in trials:
            train(progress, trial, 100)
            progress.follow(one.key, course)
        told.append(progress.seconds_left())
        if one is studies[0]:  # as if the first one had passed the goal when it was set aside
            progress.follow(one.key, Course(planned=10, best=100))
            assert progress.seconds_left() == pytest.approx(5 * 14 - 10, abs=0.1)
        for trial in trials[:2]:
            train(progress, trial, 300, before=100)
        course.settled = 10
        progress.follow(one.key, course)
    assert progress.seconds_left() == 0
    assert told[1:] == pytest.approx([54, 38, 22, 6], abs=0.1)
    assert told[0] == pytest.approx(5 * 28.3 - 10, abs=0.1)  # sqrt(100 * 800) steps on average


def test_what_is_left_takes_as_long_as_on_the_machines_of_this_session() -> None:
    """As above, with a session that ended when one study was done and another was set aside. A
    second is ten steps from then on."""
    study = make_trial(goals=("val/error < 0.5",), budget_steps=800).study
    done, aside, *others = (replace(study, recipe=str(number), trials=10) for number in range(4))
    progress = Progress([done, aside, *others])
    for one, most in ((done, 400), (aside, 100)):
        for index in range(10):
            trial = Trial(study=one, index=index, seed=0, params={})
            outcome = Outcome(status="paused", steps=most if index < 2 else 100, seconds=1)
            progress.load(FinishedTrial(trial=trial, outcome=outcome))
        progress.follow(one.key, Course(planned=10, settled=10 * (one is done)))
    assert math.isnan(progress.seconds_left())
    for index, left in ((0, 30 + 2 * 160), (1, 2 * 160)):
        trial = Trial(study=aside, index=index, seed=0, params={})
        train(progress, trial, 300, before=100, pace=10)
        progress.follow(aside.key, Course(planned=10, settled=10 * index))
        assert progress.seconds_left() == pytest.approx(left, rel=0.1)


def finish_all(progress: Progress, study: Study, trials: int, seconds: float) -> None:
    """Trains so many trials to their ends, each in these seconds."""
    for index in range(trials):
        trial = Trial(study=study, index=index, seed=0, params={})
        progress.start(trial)
        progress.stop(trial, Outcome(status="reached", steps=9, seconds=seconds, width=2))
    progress.follow(study.key, Course(planned=trials, settled=trials))


def test_recipes_and_batch_sizes_take_different_times_and_repeats_are_still_to_come() -> None:
    """One study of each recipe waits. Each has twice as many repeats as one goal asks for."""
    study = replace(make_trial().study, trials=10, repeats=4, repeat_best=2)
    slow, large = {"sgd": 1, "muon": 5, "soap": 9}, {8: 1, 32: 2, 128: 4, 512: 8}
    cost = {(recipe, size): slow[recipe] * large[size] for recipe in slow for size in large}
    studies = [replace(study, recipe=recipe, batch_size=size) for recipe, size in cost]
    progress = Progress(studies)
    waiting = studies[3:10:3]
    for one in (one for one in studies if one not in waiting):
        finish_all(progress, one, 10 + 16, cost[one.recipe, one.batch_size])
    left = sum(26 * cost[one.recipe, one.batch_size] for one in waiting)
    assert progress.seconds_left() == pytest.approx(left, rel=0.3)


def test_small_batches_that_wait_are_not_taken_for_ever_quicker_ones() -> None:
    """Of large batches, a quarter of the batch size takes as many steps, each in a quarter of the
    time. Of small ones, it takes more steps that are no quicker."""
    study = replace(make_trial().study, trials=10)
    took = {2: 1000, 8: 250, 32: 120, 128: 60, 512: 100, 2048: 400, 8192: 1600}
    progress = Progress([replace(study, batch_size=size) for size in took])
    for one in [*progress.studies.values()][4:]:
        finish_all(progress, one.study, 10, took[one.study.batch_size])
    left = sum(10 * seconds for size, seconds in took.items() if size < 512)
    assert left / 4 < progress.seconds_left() < left * 4


def test_what_is_left_is_counted_down_while_long_trials_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    trial = make_trial(goals=("val/error < 0.5",), budget_steps=100)
    progress = Progress([replace(trial.study, trials=10)])
    for index in range(10):
        progress.start(replace(trial, index=index))
        clock[0] += 100
        progress.stop(replace(trial, index=index), Outcome(status="reached", steps=100, seconds=1))
        progress.follow(trial.study.key, Course(planned=10, settled=index + 1))
        told, seconds = [], 900 - 100 * index
        for waits in (0, 50, seconds, 2 * seconds):
            clock[0] += waits
            told.append(progress.seconds_left())
            clock[0] -= waits
        late = max(abs(seconds - 50), seconds / 10) if seconds else 0
        assert told == pytest.approx([seconds, late, seconds / 10, seconds])


def test_trials_that_wait_for_others_are_counted() -> None:
    trial = make_trial(goals=("val/error < 0.5",), budget_steps=100)
    progress = Progress([replace(trial.study, trials=3)])
    for index in range(3):
        progress.start(replace(trial, index=index))
        progress.stop(replace(trial, index=index), Outcome(status="paused", steps=10, seconds=1))
    progress.follow(trial.study.key, Course(planned=3, settled=0))
    progress.start(trial)
    assert "0 of 3 trials, 0 of 1 studies, 1 running, 2 paused, " in terminal._line(progress)


def test_trials_may_start_while_they_are_counted() -> None:
    trial = make_trial(goals=("val/error < 0.5",), budget_steps=100)
    progress = Progress([replace(trial.study, trials=3)])

    class Meanwhile(set[tuple[int, int]]):
        def __contains__(self, item: object) -> bool:
            progress.start(replace(trial, index=1))
            return super().__contains__(item)

    progress.studies[trial.study.key].trained = Meanwhile()
    progress.start(trial)
    assert progress.paused == 0


def test_trials_that_still_run_count_as_work_in_the_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two stacks of ten: in the first 100 seconds, one trial of each has ended."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    trial = make_trial(goals=("val/error < 0.5",), budget_steps=100)
    progress = Progress([replace(trial.study, trials=20)])
    progress.slots = 2
    for index in range(20):
        progress.start(replace(trial, index=index))
    clock[0] = 100
    for index in range(2):
        outcome = Outcome(status="reached", steps=100, seconds=10, width=10)
        progress.stop(replace(trial, index=index), outcome)
    progress.follow(trial.study.key, Course(planned=20, settled=2))
    assert progress.seconds_left() == pytest.approx(18 * 10 / 2)


def test_commands_to_paste_quote_their_paths(tmp_path: Path) -> None:
    run = new_run(tmp_path / "a b", make_trial(goals=("val/error < 0.5",)).study)
    rows = frontier_of(run)
    assert f"orchestrate resume '{run.place}'" in (said := answers.what_next(rows, run.place))
    assert said == answers.what_next(2 * rows, run.place), "a study has several goals, one name"


CLOSED = """
import os, signal, threading
from orchestrator.sweeping.interrupts import heed_termination, heeded
heed_termination()
asked = threading.Event()
with heeded(asked, lambda: None):
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGHUP)
print(asked.is_set())
"""


@pytest.mark.parametrize(("below", "asked"), [([], "True\n"), (["nohup"], "False\n")])
def test_a_terminal_that_is_closed_asks_a_sweep_to_end(below: list[str], asked: str) -> None:
    """The system and the shell both send the signal, and the second one must not end it at once."""
    command = [*below, sys.executable, "-c", CLOSED]
    as_usual = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # whoever started the tests
    assert subprocess.check_output(command, text=True, preexec_fn=as_usual) == asked
