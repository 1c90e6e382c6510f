"""Programs as workloads: their commands, what is refused, what they report, and their frontier."""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from conftest import called, made, orchestrate, refused
from quadratic import steps_to_goal

import orchestrator
from orchestrator.cli.planning import _timed
from orchestrator.files.own_code import UserFolder, import_own
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import validated
from orchestrator.programs.commands import arguments_of, check_files, search_path, values_of
from orchestrator.programs.hearing import Hearing, ProgramFailed
from orchestrator.programs.reporting import report
from orchestrator.records import EvaluationGrid, FinishedTrial, Outcome, Study, Trial
from orchestrator.results import RunFiles, frontier_of

SCRIPT = """
import argparse
import numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--batch-size", type=int)
parser.add_argument("--seed", type=int)
parser.add_argument("--max-steps", type=int)
asked = parser.parse_args()
h, rng = 1 / np.arange(1, 65), np.random.default_rng(asked.seed)
x = np.ones((512, 64))
for step in range(1, asked.max_steps + 1):
    noise = np.sqrt(h / asked.batch_size) * rng.standard_normal(x.shape)
    x -= asked.lr * (h * x + noise)
    if step % 5 == 0:
        print(f"step {step:,}: loss {0.5 * (x * x @ h).mean():.9g}")
"""

COMMAND = (
    "python quadratic.py --lr {learning_rate} --batch-size {batch_size} --seed {seed} "
    "--max-steps {steps}"
)
PATTERN = r"step (?P<step>[\d,]+): loss (?P<loss>\S+)"
PRINTED = {"from": "stdout", "pattern": PATTERN}
PROGRAM = {
    "program": COMMAND,
    "name": "quadratic",
    "goal": "loss < 0.3",
    "metrics": PRINTED,
    "examples": 100_000,
}
SWEEP = {
    "name": "quadratic",
    "workloads": [PROGRAM],
    "recipes": [
        {"name": "sgd", "space": {"learning_rate": {"low": 0.02, "high": 1, "scale": "log"}}}
    ],
    "batch_sizes": [1, 8, 64],
    "budget": {"steps": 600},
    "search": {"trials": 4},
}


def in_file(name: str) -> dict[str, str]:
    return {"from": "jsonl", "file": f"{{folder}}/{name}"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "quadratic.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def studies_of(program: dict[str, Any] | None = None, **changes: Any) -> tuple[Study, ...]:
    entry = {**PROGRAM, **(program or {})}
    entry = {key: value for key, value in entry.items() if value is not None}
    return plan(validated({**SWEEP, "workloads": [entry], **changes}, "sweep.yaml")).studies


def command_of(study: Study, devices: int = 1, **params: Any) -> list[str]:
    trial = Trial(study=study, index=0, seed=7, params={"learning_rate": 0.1, **params})
    return arguments_of(trial, devices, Path("/there"))


@pytest.mark.parametrize(
    ("command", "more", "found"),
    [
        ("a.py {batch_size} --x={learning_rate}", {}, ["8", "--x=0.1"]),
        ("a.py '{batch_size} {seed} {steps}' {args}", {}, ["8 7 600", "--learning_rate=0.1"]),
        (["a.py", "{batch_size}", "${args_no_hyphens}"], {}, ["8", "learning_rate=0.1"]),
        (
            "a.py ${args}",
            {"arguments": {"learning_rate": "optim.lr", "batch_size": "bs"}},
            ["--optim.lr=0.1", "--bs=8"],
        ),
        (
            "a.py {args_json} {folder}",
            {"arguments": {"batch_size": "batch"}},
            ['{"learning_rate": 0.1, "batch": 8}', "/there"],
        ),
        (
            "a.py {batch_size_per_device} {accumulation_steps} {learning_rate} {batch_tokens}",
            {"max_per_device": 3, "tokens_per_example": 128},
            ["2", "2", "0.1", "1024"],
        ),
        ("a.py '{\"json\": {batch_size}}' {learning_rate}", {}, ['{"json": 8}', "0.1"]),
    ],
)
def test_placeholders(folder: Path, command: Any, more: dict[str, Any], found: list[str]) -> None:
    (folder / "a.py").touch()
    parts = ["python", *command] if isinstance(command, list) else f"python {command}"
    resources = {"max_devices": 2, "examples_per_device": 4}
    study = studies_of({"program": parts, **more}, resources=resources)[1]
    assert command_of(study, 2)[2:] == found


def test_a_small_value_is_a_number_in_yaml(folder: Path) -> None:
    (study, *_) = studies_of(
        {"program": f"{COMMAND} --decay={{decay}}"},
        recipes=[{"name": "sgd", "space": {"learning_rate": 0.1, "decay": 1e-5}}],
    )
    (found,) = (each for each in command_of(study, decay=1e-5) if each.startswith("--decay="))
    assert yaml.safe_load(found.partition("=")[2]) == 1e-5


def test_a_value_stays_within_its_argument(folder: Path) -> None:
    (study, *_) = studies_of(
        recipes=[{"name": "sgd", "space": {"learning_rate": 0.1, "name": "x; {seed} '"}}],
        workloads=[{**PROGRAM, "program": f"{COMMAND} --name={{name}}"}],
    )
    assert command_of(study, name="x; {seed} '")[-1] == "--name=x; {seed} '"


@pytest.mark.parametrize(
    ("program", "sweep", "code", "told"),
    [
        ({"program": COMMAND.replace("seed}", "sead}")}, {}, "unknown-name", ["sead", "seed"]),
        ({}, {"recipes": ["sgd"]}, "unknown-name", ["'sgd'", "`space`", "learning_rate"]),
        ({"program": "python quadratic.py {batch_size}"}, {}, "no-effect", ["learning_rate"]),
        ({"program": "python quadratic.py {args}"}, {}, "no-effect", ["{batch_size}"]),
        ({"program": f"{COMMAND} -{{args}}{{seed}}"}, {}, "wrong-value", ["-{args}{seed}"]),
        ({"program": f"{COMMAND} -x={{args}}"}, {}, "wrong-value", ["-x={args}"]),
        ({"metrics": in_file("{args}")}, {}, "unknown-name", ["args"]),
        # The place of the numbers is nothing that the program is told.
        (
            {"program": "python quadratic.py {args}", "metrics": in_file("{batch_size}")},
            {},
            "no-effect",
            ["{batch_size}"],
        ),
        (
            {"program": f"{COMMAND} {{args}}", "arguments": {"learning_rate": "a", "seed": "a"}},
            {},
            "given-twice",
            ["'a'"],
        ),
        ({"program": f"{COMMAND} {{batch_tokens}}"}, {}, "missing-key", ["tokens_per_example"]),
        ({"max_per_device": 4}, {}, "no-effect", ["max_per_device", "accumulation_steps"]),
        ({"program": COMMAND.replace("python ", "")}, {}, "missing-file", ["python quadratic.py"]),
        ({"program": COMMAND.replace("quad", "qu")}, {}, "missing-file", ["quratic.py"]),
        ({"program": f"A=1 {COMMAND}"}, {}, "missing-file", ["'A=1'", "env NAME=VALUE"]),
        ({"program": "sh a.sh {args} {batch_size}"}, {}, "missing-file", ["a.sh"]),
        ({"program": "python '{batch_size"}, {}, "wrong-value", ["'{batch_size"]),
        ({"goal": None}, {}, "missing-goal", ["quadratic"]),
        ({"name": None}, {}, "missing-key", ["name", "function"]),
        ({"function": "a.py:main"}, {}, "not-together", ["function"]),
        ({"metrics": {"from": "stdout"}}, {}, "missing-key", ["pattern", "stdout"]),
        ({"metrics": {"file": "a"}}, {}, "no-effect", ["file", "jsonl"]),
        ({"metrics": {**PRINTED, "step": "s"}}, {}, "no-effect", ["step", "jsonl"]),
        # A place that trials share: one would hear what another had written.
        ({"metrics": {"from": "jsonl", "file": "a.log"}}, {}, "wrong-value", ["a.log"]),
        ({"metrics": {"from": "tensorboard", "folder": "b"}}, {}, "wrong-value", ["b"]),
        ({"metrics": {"from": "stdout", "pattern": "(?P<loss>.)"}}, {}, "wrong-value", ["step"]),
        ({"metrics": {"from": "stdout", "pattern": "("}}, {}, "wrong-value", ["("]),
        ({"metrics": PRINTED, "goal": "val/loss < 1"}, {}, "unknown-name", ["val/loss", "pattern"]),
        ({"program": f"{COMMAND} --nproc_per_node=2"}, {}, "wrong-value", [2, "{devices}"]),
        ({}, {"budget": None}, "missing-key", ["budget"]),
        ({"examples": None}, {"batch_sizes": ["full"]}, "endless-data", ["`examples`"]),
        ({}, {"budget": {"steps": 9, "inherit": 2}}, "not-together", ["inherit", "resumes"]),
        ({}, {"evaluate": {"spacing": 0.1}}, "no-effect", ["evaluate.spacing"]),
        (
            {"program": f"{COMMAND} {{batch_size_per_device}}"},
            {"resources": {"max_devices": 3, "examples_per_device": 1}},
            "wrong-value",
            ["8", "3"],
        ),
    ],
)
def test_refused(
    folder: Path, program: dict[str, Any], sweep: dict[str, Any], code: str, told: list[str]
) -> None:
    with refused(code, *told):
        studies_of(program, **sweep)


def test_without_a_seed_there_are_no_repeats(folder: Path) -> None:
    entry = {**PROGRAM, "program": COMMAND.replace(" --seed {seed}", "")}
    more = [{"batch_sizes": SWEEP["batch_sizes"], "repeats": 3}]
    for asked in ({"repeats": 3}, {"more": more}):
        found = plan(validated({**SWEEP, "workloads": [entry], **asked}, "sweep.yaml"))
        assert {study.repeats for study in found.studies} == {0}
        assert any("{seed}" in remark for remark in found.remarks)
    assert {study.repeats for study in studies_of(repeats=3)} == {3}


def heard(study: Study, *reports: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    hearing = Hearing(study)
    found = [m for report in reports for m in hearing.line(json.dumps(report).encode())]
    return [(m.step, dict(m.metrics)) for m in [*found, *hearing.rest()]]


def test_reports(folder: Path) -> None:
    study = studies_of({"metrics": None})[0]
    # Parts of a report, of ranks that all print it, and what isn't known of one.
    assert heard(
        study,
        {"step": 0, "lr": 1},
        {"step": 5, "lr": 2, "noise": None},
        {"step": 5, "loss": 0.5},
        {"step": 5, "loss": 0.5},
        {"step": 7, "train_loss": 0.25},
    ) == [(0, {"lr": 1}), (5, {"lr": 2, "loss": 0.5}), (7, {"train_loss": 0.25})]
    ((_, broken),) = heard(study, {"step": 1, "loss": math.nan})
    assert math.isnan(broken["loss"])
    for reports, told in (
        ([{"step": 5, "loss": 1}, {"step": 5, "loss": 2}], "step 5"),
        ([{"step": 5, "loss": 1}, {"step": 4, "loss": 2}], "step 4 after step 5"),
        ([{"step": step, "loss": loss} for step, loss in [(5, 1), (6, 1), (5, 2)]], "anew"),
        # Too late for a goal: the step has been judged without it.
        ([{"step": 5, "x": 1}, {"step": 6, "x": 1}, {"step": 5, "loss": 2}], "step 5 after step 6"),
        ([{"step": 1.5, "loss": 1}], "whole number"),
        ([{"step": "x", "loss": 1}], "whole number"),
        ([{"loss": 1}], "'step'"),
    ):
        with pytest.raises(ProgramFailed, match=told):
            heard(study, *reports)
    with pytest.raises(ProgramFailed, match="line of JSON"):
        Hearing(study).line(b"\xff\x00{")


def test_a_metric_may_be_called_step_or_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATE_REPORTS", "reports")
    monkeypatch.setenv("ORCHESTRATE_STOP", "stop")
    assert report(5, {"time": 0.5, "step": 7, "loss": 1})
    told = json.loads(Path("reports").read_text())
    expected = {"program/time": 0.5, "program/step": 7, "loss": 1}
    study = studies_of({"metrics": None})[0]
    assert heard(study, told) == [(5, expected)]
    assert report(5.5, {"loss": 1})  # as of a fraction of an epoch, and no step 5
    with pytest.raises(ProgramFailed, match="whole number"):
        heard(study, json.loads(Path("reports").read_text().splitlines()[1]))


OURS = ("step", "trial", "repeat", "seconds", "examples")


def test_no_name_of_a_metric_damages_the_run(folder: Path) -> None:
    """Neither a column that is there anyway nor what no file can hold."""
    metrics = {"from": "jsonl", "file": "{folder}/log", "step": "global_step"}
    (study, *_) = studies_of({"program": f"{COMMAND} {{folder}}", "metrics": metrics})
    hearing, names = Hearing(study), [*OURS, "a\ud800", "a\0"]
    line = json.dumps({"global_step": 5, "loss": 0.1, **dict.fromkeys(names, 7)}).encode()
    measurements = tuple(hearing.line(line))
    trial = Trial(study=study, index=0, seed=7, params={"learning_rate": 0.1})
    outcome = Outcome(status="reached", steps=5, seconds=0.0)
    run = RunFiles(folder / "run")
    run.create({}, [study], {})
    run.write(FinishedTrial(trial=trial, outcome=outcome, measurements=measurements))
    for _ in range(2):
        (finished,) = run.finished(study)
        assert finished.measurements == measurements
        run.put_together(study.key, finished=True)
    assert {f"program/{name}" for name in OURS} < {*measurements[0].metrics}
    assert len(measurements[0].metrics) == 8


def test_declared_spacing(folder: Path) -> None:
    """Only whole reports count, and the next may not come earlier: by that, trials are ended."""
    study = studies_of({"metrics": None, "every": 10})[0]
    assert [study.following(step) for step in (0, 7, 595)] == [10, 17, 600]
    lines = [{"step": 3, "lr": 1}, {"step": 10, "loss": 2}, {"step": 15, "lr": 1}]
    assert heard(study, *lines, {"step": 20, "loss": 1}) == [
        (10, {"loss": 2}), (20, {"loss": 1})
    ]  # fmt: skip
    with pytest.raises(ProgramFailed, match=r"step 19 after step 10.*every: 10"):
        heard(study, {"step": 10, "loss": 2}, {"step": 19, "loss": 1})
    assert heard(study, {"step": 595, "loss": 2}, {"step": 600, "loss": 1})


@pytest.mark.dear
def test_the_frontier_is_that_of_the_recursion(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    orchestrate("sweep", "sweep.yaml", "--no-ray", "--out", "run", cwd=folder)
    run = RunFiles(folder / "run")
    for study, row in zip(run.studies(), frontier_of(run), strict=True):
        best = min(
            steps_to_goal(
                d=64,
                goal=0.3,
                learning_rate=finished.trial.params["learning_rate"],
                batch_size=study.batch_size,
                budget=600,
                grid=EvaluationGrid(spacing=0, min_gap=5),
            )
            for finished in run.finished(study)
        )
        assert row.steps == pytest.approx(best, abs=5)
    assert not (folder / "run" / "checkpoints").exists()
    logs = [*(folder / "run" / "logs").rglob("*.txt")]
    assert len(logs) == 12
    assert all("step 5: loss" in log.read_text() for log in logs)


FUNCTION = """
def main(trial):
    for step in range(1, trial.steps + 1):
        loss = 1 / (step * trial.params["learning_rate"] * trial.batch_size)
        if not trial.report(step, {"loss": loss, "examples": step * trial.batch_size}):
            break
"""


@pytest.mark.dear
@pytest.mark.parametrize("of_notebook", [False, True])
def test_a_function_is_a_program(
    of_notebook: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a notebook can be imported by no other process."""
    (folder / "mine.py").write_text(FUNCTION)
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec(FUNCTION, vars(notebook))
    workload = {"function": notebook.main if of_notebook else "mine.py:main", "goal": "loss < 0.1"}
    sweep = {**SWEEP, "workloads": [workload], "batch_sizes": [1, 8], "search": {"trials": 2}}
    run = orchestrator.sweep(sweep, ray=False, out=folder / "run", quiet=True)
    assert [row.steps for row in run.frontier()] == [
        min(
            math.floor(10 / json.loads(trial["params"])["learning_rate"] / row.batch_size) + 1
            for trial in run.trials()
            if trial["batch_size"] == row.batch_size
        )
        for row in run.frontier()
    ]


def test_a_metaparameter_of_a_function_may_be_called_anything(folder: Path) -> None:
    (folder / "mine.py").write_text(FUNCTION)
    entry = {"function": "mine.py:main", "goal": "loss < 0.1"}
    recipe = {"name": "sgd", "space": {"steps": 3, "seed": 4}}
    (study, *_) = studies_of(workloads=[entry], recipes=[recipe])
    trial = Trial(study=study, index=0, seed=7, params={"steps": 3, "seed": 4})
    told = values_of(trial, 1, folder)
    assert (told["steps"], told["seed"]) == (600, 7)
    with refused("unknown-name", "'man'", "main"):
        import_own("function", "mine.py:man")


@pytest.mark.dear
def test_storage_that_refuses_the_reports_of_a_trial_ends_no_sweep(folder: Path) -> None:
    (folder / "quadratic.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom orchestrator import report\n"
        "if float(sys.argv[1]) < 0.2:\n    Path(sys.argv[3], '../measured.jsonl').mkdir()\n"
        "report(1, {'loss': 0.1})\n"
    )
    program = "python quadratic.py {learning_rate} {batch_size} {folder}"
    entry = {"name": "mine", "program": program, "goal": "loss < 1", "resumes": True}
    changes = {"workloads": [entry], "batch_sizes": [1], "faults": {"max_failures": 0}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**SWEEP, **changes}))
    orchestrate("sweep", "sweep.yaml", "--no-ray", "--out", "run", cwd=folder)
    run = RunFiles(folder / "run")
    trials = [trial for study in run.studies() for trial in run.finished(study)]
    for trial in trials:
        refused = trial.trial.params["learning_rate"] < 0.2
        assert trial.outcome.status == ("failed" if refused else "reached")
    assert len({trial.outcome.status for trial in trials}) == 2


def test_a_trial_by_hand(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    given = ("--steps", 20, "--set", "learning_rate=0.5")
    told = json.loads(called("trial", "sweep.yaml", *given, "--json"))
    assert (told["steps"], told["batch_size"], told["params"]) == (20, 8, {"learning_rate": 0.5})
    assert [each["step"] for each in told["measurements"]] == [5, 10, 15, 20]
    with refused("no-effect"):
        called("trial", "sweep.yaml", "--ranks", 2)
    with refused("batch-too-large", 10**6):
        called("trial", "sweep.yaml", "--batch-size", 10**6)
    # Its budget is that of this batch size, which the sweep need not have.
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP | {"budget": {"examples": 800}}))
    short = ("--batch-size", 16, "--set", "learning_rate=0.001")
    assert json.loads(called("trial", "sweep.yaml", *short, "--json"))["steps"] == 50


def test_a_script_may_lie_where_only_its_launcher_looks() -> None:
    check_files(["env", "-C", "elsewhere", "python", "train.py"])
    with refused("missing-file", "train.py"):
        check_files(["env", "A=1", "python", "train.py"])


def test_programs_of_this_environment_come_first() -> None:
    assert shutil.which("python", path=search_path()) == str(Path(sys.executable).parent / "python")


def test_a_study_of_a_program_survives_its_file(folder: Path) -> None:
    run = RunFiles(folder / "run")
    studies = studies_of({"arguments": {"seed": "s"}, "resumes": True})
    run.create({}, studies, {})
    assert run.studies() == [*studies]
    assert replace(studies[0], program=None) != studies[0]


def test_a_budget_that_programs_were_told_stays(folder: Path) -> None:
    """Trials can't be judged by another one."""
    run, _ = made(folder / "run", validated(SWEEP, "sweep.yaml"))
    with refused("incomparable", 600, 700):
        refuse_incomparable(run, plan(validated({**SWEEP, "budget": {"steps": 700}}, "sweep.yaml")))


def test_a_program_that_hangs_ends_no_plan(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "quadratic.py").write_text("import time; time.sleep(1000)")
    sweep = validated({**SWEEP, "faults": {"hang_seconds": 0.2}}, "sweep.yaml")
    assert _timed(plan(sweep).studies[0], sweep.resources, sweep.faults) is None
    assert "hang_seconds" in capsys.readouterr().err


@pytest.mark.slow  # since it starts Ray, on which classes are timed
def test_a_plan_times_programs(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP | {"batch_sizes": [8]}))
    told = json.loads(orchestrate("plan", "sweep.yaml", "--calibrate", "--json", cwd=folder).stdout)
    (study,) = told["studies"]
    assert 0 < study["speed"]["step_seconds"] < 1
    assert study["speed"]["evaluation_seconds"] == 0


def test_scripts_travel_to_other_machines(folder: Path) -> None:
    (folder / "beside.py").touch()
    (folder / "train.sh").write_text("python quadratic.py")
    (folder / "data.bin").write_bytes(bytes(1_000_000))
    text = "longer than the name of any file; " * 9
    command = ["sh", "train.sh", "data.bin", text, "{learning_rate} {batch_size} {seed}"]
    entry = {**PROGRAM, "program": command}
    places = validated({**SWEEP, "workloads": [entry]}, "sweep.yaml").code_names
    assert {*UserFolder.here(places).code} >= {"train.sh", "beside.py", "quadratic.py"}
    assert "data.bin" not in UserFolder.here(places).code
