"""From Python: the same runs, files and answers as from the command line."""

import inspect
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import pandas as pd
import pytest
import warm
from conftest import TINY, orchestrate, refused, wait_for

import orchestrator
from orchestrator import Run
from orchestrator.cli import runs
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.report.style import Drawing
from orchestrator.results import FrontierRow
from orchestrator.workloads.digits import DigitsMLP

SWEEP: dict[str, Any] = {
    **TINY, "goals": ["val/error < 0.1"], "batch_sizes": [32, 64], "budget": {"steps": 400},
    "repeats": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return orchestrator.sweep(SWEEP, out=tmp_path_factory.mktemp("run") / "run", ray=False)


@pytest.mark.parametrize("name", orchestrator.__all__)
def test_all_that_is_promised_is_there(name: str) -> None:
    assert getattr(orchestrator, name).__module__.startswith("orchestrator.")


def test_answers_are_rows_and_tables(run: Run) -> None:
    frontier = run.frontier()
    assert [row.batch_size for row in frontier] == [32, 64]
    assert isinstance(frontier[0], FrontierRow)
    assert len(frontier[1:]) == 1
    table = frontier.to_pandas()
    assert isinstance(table, pd.DataFrame)
    assert table["steps"].tolist() == [row.steps for row in frontier]
    assert "params.learning_rate" in table
    assert frontier.to_arrow()["repeats.count"].to_pylist() == [2, 2]
    assert "<table" in frontier._repr_html_()
    assert "batch_size" in repr(frontier)
    assert "None" not in repr(frontier)
    assert repr(run.rules()) == "no rows"
    trials = run.trials()
    assert "NaN" not in repr(trials)
    assert [(row["batch_size"], row["trial"]) for row in trials] == [
        (size, index) for size in (32, 64) for index in range(3)
    ]
    assert trials[-1] == [*trials][-1]
    assert len(trials[1:3]) == 2
    assert len(run.repeats()) == 4
    assert len(run.measurements()) > len(trials)
    assert run.measurements("val/error").to_arrow().column_names[3:] == [
        "trial", "step", "val/error",
    ]  # fmt: skip


def test_tables_say_what_the_command_says_of_them(run: Run) -> None:
    missed = run.frontier("val/error < 0.0001")
    first, second = (f"sgd at {size}: no trial passed" for size in (32, 64))
    assert missed.caption.startswith(first)
    assert f"<br>{second}" in missed._repr_html_()
    # The point of the median, which need not be that of the fewest steps.
    assert "repeats.params.learning_rate" in repr(run.frontier())
    assert "censored" in repr(run.best("val/error", within="steps=100"))
    assert "seconds" in run.measurements("seconds").to_arrow().column_names
    with refused("unknown-name", "'val/eror'", "'val/error'"):
        run.measurements("val/eror")


def test_other_goals_budgets_and_metrics(run: Run) -> None:
    (easy, _) = run.frontier("val/error < 0.5")
    (asked, _) = run.frontier()
    assert easy.goal == "val/error < 0.5"
    assert easy.steps is not None
    assert asked.steps is not None
    assert easy.steps < asked.steps
    assert {row.within for row in run.best("val/error", within=["steps=10", "steps=20"])} == {
        "steps=10", "steps=20",
    }  # fmt: skip
    (scaling,) = run.scaling()
    assert (scaling.recipe, scaling.largest) == ("sgd", 64)


def test_figures_go_by_the_beginning_of_their_titles(run: Run) -> None:
    titles = run.figures()
    assert "Steps to goal against batch size" in titles
    assert run.figure("steps").data
    # plotly knows all words of each.
    assert all(run.figure(title).data for title in titles)
    with refused("unknown-name", "'stepps'", "Steps to goal"):
        run.figure("stepps")
    with refused("unknown-name", "workload 'digits/mpl'", "'digits/mlp'"):
        run.figure("steps", workload="digits/mpl")


def test_of_several_workloads_the_first_has_the_figure(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {("a", "Steps to goal"): Drawing(), ("b", "Steps to goal"): Drawing()}
    for (workload, _), figure in drawn.items():
        figure.styled(workload, "steps")
    monkeypatch.setattr(Run, "_figures", lambda *_: drawn)
    assert run.figure("steps").layout.xaxis.title.text == "a"


def test_the_page_may_be_written_anywhere(run: Run, tmp_path: Path) -> None:
    page = run.report(tmp_path / "page.html", "val/error < 0.5")
    assert "0.5" in Path(page).read_text()
    with pytest.raises(IsADirectoryError):
        run.report(".")


def test_what_a_sweep_comes_to() -> None:
    """Numbers of numpy are numbers."""
    sizes, trials = np.array([8, 16]), np.int64(5)
    found = orchestrator.plan({**SWEEP, "batch_sizes": sizes}, set={"search.trials": trials})
    assert [(study.batch_size, study.trials) for study in found] == [(8, 7), (16, 7)]
    assert "2 studies" in found.caption
    assert not re.search("nan|None", repr(found))


def test_one_trial_by_hand() -> None:
    trained = by_hand(params={"learning_rate": np.float64(0.1)})
    assert trained.trial.params == {"learning_rate": 0.1}
    assert trained.outcome.steps == trained.measurements[-1].step == 5
    assert "val/error" in trained.measurements.to_pandas()
    assert repr(trained).startswith(
        "digits/mlp sgd batch size 8, learning_rate=0.1: exhausted after 5 steps\n"
    )


def by_hand(**options: Any) -> orchestrator.Trained:
    of_numpy = {"batch_size": np.int64(8), "steps": np.int64(5)}
    return orchestrator.train("digits/mlp", optimizer="sgd", **of_numpy, **options)


@pytest.mark.parametrize(
    ("call", "code", "value"),
    [
        (lambda: orchestrator.sweep({**SWEEP, "gaols": []}), "unknown-key", "'gaols'"),
        (
            lambda: orchestrator.sweep(SWEEP, ray=False, address="auto"),
            "not-together",
            "--address",
        ),
        (lambda: orchestrator.plan(SWEEP, set="search.trails=5"), "unknown-key", "'search.trails'"),
        (lambda: orchestrator.sweep(SWEEP, ray=False, track="mflow"), "unknown-name", "'mflow'"),
        (lambda: by_hand(ranks=0), "wrong-value", "`ranks`"),
        (lambda: by_hand(seed=-1), "wrong-value", "seed"),
        (
            lambda: orchestrator.plan({**SWEEP, "workloads": [type("a.<locals>.Mine", (), {})]}),
            "not-importable",
            "top level",
        ),
        (
            lambda: orchestrator.train(models.MLP(), optimizer="sgd", batch_size=8),  # type: ignore[arg-type]
            "wrong-value",
            "valid string",
        ),
    ],
)
def test_bad_input_is_refused_as_everywhere(call: Any, code: str, value: str) -> None:
    with refused(code, value):
        call()


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (orchestrator.sweep, runs.sweep),
        (orchestrator.branch, runs.branch),
        (Run.resume, runs.resume),
    ],
)
def test_arguments_are_the_options_of_the_command(call: Any, command: Any) -> None:
    ours, theirs = (
        {name.rstrip("_"): p.default for name, p in inspect.signature(each).parameters.items()}
        for each in (call, command)
    )
    of_python = {name: ours.pop(name) for name in ("self", "what", "quiet") if name in ours}
    of_shell = {name: theirs.pop(name) for name in ("path", "file", "as_json") if name in theirs}
    assert ours == theirs
    assert of_python.pop("quiet") is False
    assert of_shell.pop("as_json") is False
    with pytest.raises(TypeError, match="unexpected keyword argument 'trakc'"):
        call(None, trakc=["mlflow"])


@pytest.mark.dear
def test_an_interrupt_of_the_script_is_one_of_the_command(tmp_path: Path) -> None:
    """The command runs in a process of its own, which keeps what it measured."""
    long = {
        **SWEEP, "batch_sizes": [1], "budget": {"steps": 10**7}, "stop": {"at_goal": False},
        "checkpoint": {"every_seconds": 0.1},
    }  # fmt: skip
    # Where the tests run in the background, their processes would ignore an interrupt. On one core,
    # the command starts no Ray, which test_siege.py and test_privacy.py interrupt.
    script = f"""
import os, signal
import orchestrator
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    orchestrator.sweep({long}, out="run", yes=True)
except KeyboardInterrupt:
    print("as it should")
"""
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        wait_for(lambda: [*tmp_path.glob("run/checkpoints/*")], process, tmp_path / "log")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert said.strip() == b"as it should"
    assert Run(tmp_path / "run").studies()
    assert "Go on with: orchestrator.open_run('run').resume()" in (tmp_path / "log").read_text()


def test_reading_a_run_needs_neither_torch_nor_ray(run: Run) -> None:
    code = f"""
import os, sys
before = dict(os.environ)
import orchestrator
dir(orchestrator)
assert not {{"torch", "ray", "plotly", "pandas", "numpy", "pydantic"}} & {{*sys.modules}}, "at once"
run = orchestrator.open_run({run.path!r})
run.frontier(), run.scaling(), run.trials()
assert not {{"torch", "ray", "optuna"}} & {{*sys.modules}}, "loaded"
assert dict(os.environ) == before, "changed"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.dear
def test_the_command_line_comes_to_the_same(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"out": tmp_path / "sweep", "ray": False, "set": {"name": "other"}, "quiet": True}
    with ThreadPoolExecutor() as pool:  # off the main thread
        pool.submit(orchestrator.sweep, SWEEP, **given).result()
    assert capsys.readouterr() == ("", "")
    (tmp_path / "sweep.yaml").write_text((Path(run.path) / "sweep.yaml").read_text())
    by_hand = orchestrate("sweep", "sweep.yaml", "--out", "by-hand", "--no-ray", cwd=tmp_path)
    assert by_hand.returncode == 0, by_hand.stderr
    for name in ("sweep", "by-hand"):
        found = tmp_path / name / "frontier.csv"
        assert found.read_bytes() == Path(run.path, "frontier.csv").read_bytes()


def test_threads_of_a_process_train_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh models draw their weights from the one generator that torch has."""
    both, fresh = threading.Barrier(2), DigitsMLP.model

    def meeting(workload: DigitsMLP) -> Any:
        with suppress(threading.BrokenBarrierError):
            pytest.fail(f"two at once: {both.wait(1)}")
        return fresh(workload)

    monkeypatch.setattr(DigitsMLP, "model", meeting)
    train = partial(orchestrator.train, "digits/mlp", optimizer="sgd", batch_size=8, steps=1)
    with ThreadPoolExecutor() as pool:
        one, other = pool.submit(train), pool.submit(train)
        assert one.result().measurements[-1].metrics == other.result().measurements[-1].metrics


OWN = """
import threading
import orchestrator
import ray
from orchestrator.workloads.digits import DigitsMLP

def half(losses):
    return losses / 2

class Mine(DigitsMLP):
    def loss(self, model, batch):
        return half(super().loss(model, batch))

def work(ray):
    sweep = {**SWEEP, "workloads": [Mine], "batch_sizes": [64]}
    run = orchestrator.sweep(sweep, out=f"ray-{ray}", ray=ray)
    if ray:
        run = run.resume()
    print(run.frontier()[0].workload)

if __name__ == "__main__":
    thread = threading.Thread(target=work, args=[True])
    thread.start()
    thread.join()
    work(False)
"""


@pytest.mark.slow
def test_a_class_of_the_script_itself_goes_by_value(tmp_path: Path) -> None:
    """To a Ray that is started from a thread of a process that has imported Ray, and which comes to
    the same as this process alone."""
    (tmp_path / "script.py").write_text(OWN.replace("**SWEEP", f"**{SWEEP!r}"))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["__main__:Mine"] * 2, done.stderr
    one, other = (tmp_path / f"ray-{ray}/frontier.csv" for ray in (True, False))
    assert one.read_bytes() == other.read_bytes()
    (tmp_path / "ray-True" / "repeats").rename(tmp_path / "gone")
    resumed = orchestrate("resume", "ray-True", cwd=tmp_path)
    assert resumed.returncode == 2
    assert "__main__:Mine was defined in a notebook or a script" in resumed.stderr


@pytest.mark.slow
def test_the_page_about_it_says_what_is(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "python.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    (tmp_path / "page.py").write_text(code)
    done = warm.run(["page.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 studies, 28 trainings" in done.stdout
    assert float(done.stdout.splitlines()[-1]) < 0.1


@pytest.mark.parametrize(("asked", "gap"), [({}, 8), ({"min_examples": 16}, 2)])
def test_evaluations_are_cheap_unless_asked_for(asked: dict[str, int], gap: int) -> None:
    """Between two, twice as many examples are trained as are looked at, 30 for each."""
    changes = {"workloads": [models.name(models.MLP)], "batch_sizes": [8], "evaluate": asked}
    (study,) = plan(Sweep.model_validate({**TINY, **changes})).studies
    assert study.grid.min_gap == gap
