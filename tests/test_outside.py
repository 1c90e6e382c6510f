"""Runs that were trained elsewhere: any source becomes studies, and answers as a sweep does."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, TINY, called, orchestrate, refused
from test_hostile_archives import answer

from orchestrator.analysis.methods import methods_of
from orchestrator.cli.archives import import_
from orchestrator.records import BadInput
from orchestrator.results import (
    FrontierRow,
    RunFiles,
    frontier_of,
    parse_goals,
    step_times,
    unknown_of,
)
from orchestrator.results.outside_sources import read_source

Row = Mapping[str, Any]


def write(path: Path, rows: Iterable[Row]) -> Path:
    """A table with all columns that any row has."""
    listed = [*rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(name for row in listed for name in row))
        writer.writeheader()
        writer.writerows(listed)
    return path


def imported(source: Path | str, run: Path, **mapping: Any) -> RunFiles:
    given = None
    if mapping:
        given = run.with_suffix(".yaml")
        given.write_text(yaml.safe_dump(mapping))
    import_(str(source), str(run), given)
    return RunFiles.open(run)


def ask(run: RunFiles, goal: str) -> list[FrontierRow]:
    return frontier_of(run, parse_goals([goal]))


def problems(run: RunFiles) -> str:
    return (run.place / "problems.txt").read_text()


def counted(run: RunFiles) -> dict[str, int]:
    """What is odd -> how often it is found."""
    lines = re.findall(
        r": ((?:rows|runs|steps) [^:\n]+?)(?:, [a-z][^:\n]*)?: (\d+)$", problems(run), re.MULTILINE
    )
    return {what: int(number) for what, number in lines}


def curve(last: int, every: int = 10, **settings: Any) -> Iterator[Row]:
    """A loss of 10 / step, which passes 1 / x in steps of more than 10 x."""
    for step in range(every, last + 1, every):
        yield {**settings, "step": step, "val_loss": settings.get("worse", 1) * 10 / step}


# What is counted, and as what


def test_five_columns_answer_at_once(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    rows, passed = [], dict[tuple[int, float], list[int]]()
    for size in (8, 16, 32, 64):
        for rate in (0.1, 0.01, 0.003):
            for seed in range(5):
                # Its loss is below 3 from this step on; the trial is measured every ten steps.
                needed = int((100 + 8000 / size) * (1 + abs(math.log10(rate / 0.01)))) + int(
                    chance.integers(50)
                )
                setting = {"batch_size": size, "lr": rate, "seed": seed}
                for step in range(10, 5000, 10):
                    rows.append({**setting, "step": step, "val_loss": 4 - step / needed})
                passed.setdefault((size, rate), []).append(needed // 10 * 10 + 10)
    run = imported(write(tmp_path / "runs.csv", rows), tmp_path / "run")
    found = ask(run, "val_loss < 3")
    assert [row.batch_size for row in found] == [8, 16, 32, 64]
    for row in found:
        repeats = row.repeats
        assert repeats is not None
        assert repeats.params == {"lr": 0.01}
        # The first seed is the trial, two choose, and the last two judge.
        assert list(repeats.steps) == sorted(passed[row.batch_size, 0.01][3:])
        assert repeats.median == np.median(passed[row.batch_size, 0.01][3:])
        assert row.trials_used == 3, "seeds are no trials"
        assert not row.censored
        assert row.finished
    for command in ("advise", "resume"):
        assert answer(command, run.place)[1].startswith("imported-run")


def test_a_run_that_ended_early_is_censored_only_where_it_could_change_the_answer(
    tmp_path: Path,
) -> None:
    rows = []
    for size, last in {8: 60, 16: 90, 32: 100}.items():
        rows += [*curve(200, batch_size=size, lr=0.1)]  # passes at step 110
        rows += [*curve(last, batch_size=size, lr=0.2, worse=2)]
        rows += [*curve(150, batch_size=size, lr=0.3, worse=2)]
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run", params=["lr"])
    assert [(row.steps, row.censored) for row in ask(run, "val_loss < 0.1")] == [
        (110, True), (110, True), (110, False),
    ]  # fmt: skip
    # Nobody can have come before the first measurement.
    assert [row.censored for row in ask(run, "val_loss < 1.5")] == [False] * 3
    assert counted(run) == {"runs that ended before the longest of their study": 6}


def test_what_is_odd_about_runs_is_counted(tmp_path: Path) -> None:
    fine = [*curve(100, batch_size=8, lr=0.1, seed=0, status="finished")]
    crashed = [*curve(50, batch_size=8, lr=0.2, seed=0, status="crashed")]
    lost = [*curve(50, batch_size=8, lr=0.3, seed=0, status="finished")]
    lost.append({**lost[-1], "step": 60, "val_loss": "nan"})
    uneven = [row for row in curve(100, batch_size=8, lr=0.4, seed=0, status="finished")
              if row["step"] not in (20, 30, 40)]  # fmt: skip
    mixed = [*curve(100, batch_size=8, lr=0.5, seed=0, status="finished")][::-1]
    again = [*curve(40, batch_size=8, lr=0.1, seed=1, status="crashed")]
    twice = [fine[3], {**fine[4], "val_loss": 7}]
    odd = [{**fine[0], "step": "x"}, {**fine[0], "step": 1.5}, {**fine[0], "batch_size": 0.5}]
    table = write(
        tmp_path / "a.csv", [*fine, *crashed, *lost, *uneven, *mixed, *again, *twice, *odd]
    )
    run = imported(table, tmp_path / "run", params="lr")
    assert counted(run) == {
        "rows whose step is no whole number from 0 to 1,000,000,000": 2,
        "runs that are left out": 1,
        "steps that are there twice": 2,
        "runs with uneven steps": 1,
        "runs that crashed": 2,
        "runs that diverged": 1,
        "runs that ended before the longest of their study": 2,
    }
    (study,) = run.studies()
    assert run.trials(study.key)["status"].to_pylist() == [
        "exhausted", "paused", "diverged", "exhausted", "exhausted",
    ]  # fmt: skip
    assert "'step' has cells that are no numbers: 1" in problems(run)
    assert run.repeats.trials(study.key)["trial"].to_pylist() == [0]
    values = run.curve(study.key, 0)["val_loss"].to_pylist()
    assert values == [10 / step for step in range(10, 101, 10)], "of two values the first"
    assert (study.trials, study.repeats, study.repeat_best) == (5, 1, 1)
    assert all(line.isprintable() and ": " in line for line in problems(run).splitlines())


def test_the_same_point_and_seed_twice_is_no_repeat(tmp_path: Path) -> None:
    names = {"a": 40, "b": 100, "c": 70}
    rows = [row | {"run": name} for name, last in names.items()
            for row in map(dict, curve(last, batch_size=8, lr=0.1, seed=3))]  # fmt: skip
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run")
    (study,) = run.studies()
    assert (study.trials, study.repeats, study.budget_steps) == (1, 0, 100)
    assert counted(run) == {"runs with the point and the seed of another": 2}


@pytest.mark.parametrize(
    ("column", "amount", "mapping"),
    [
        ("examples_seen", 32, {}),
        ("tokens", 32 * 128, {"tokens_per_example": 128}),
        ("epoch", 32 / 1000, {"examples": 1000}),
        ("progress", 32 * 128, {"step": "progress", "unit": "tokens", "tokens_per_example": 128}),
    ],
)
def test_a_step_may_be_an_amount(
    column: str, amount: float, mapping: dict[str, Any], tmp_path: Path
) -> None:
    rows = [
        {"micro_batch": 4, "grad_accum": 2, "gpus": 4, "lr": 0.1, column: row["step"] * amount,
         "val_loss": row["val_loss"]}
        for row in curve(1000)
    ]  # fmt: skip
    mapping["batch_size"] = ["micro_batch", "grad_accum", "gpus"]
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run", **mapping)
    (found,) = ask(run, "val_loss < 0.1")
    assert (found.batch_size, found.steps, found.resolution) == (32, 110, 10)


def test_rows_that_are_ends_of_runs_stand_at_a_scale(tmp_path: Path) -> None:
    """Without names that anyone could know, from what the columns hold."""
    rows = [
        {"bs": size, "lr": rate, "ti": math.ceil(tokens / size / 128), "D": tokens, "N": parameters,
         "exp_name": f"{size} {rate} {tokens} {parameters}", "smooth loss": 3 + rate + size}
        for parameters in (10**6, 10**7) for tokens in (10**7, 10**8)
        for size in (8, 16) for rate in (0.1, 0.01)
    ]  # fmt: skip
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run")
    assert run.sweep()["scales"]["data=100000000,model=1000000"] == {"data": 1e8, "model": 1e6}
    assert len(run.sweep()["scales"]) == 4
    assert len(run.studies()) == 8
    assert run.sweep()["mapping"]["tokens_per_example"] == 128
    assert {study.budget_steps for study in run.studies()} == {9766, 4883, 97657, 48829}
    # Where the table does not say the steps, data and batch size do.
    bare = [{k: v for k, v in row.items() if k != "ti"} for row in rows]
    without = imported(write(tmp_path / "b.csv", bare), tmp_path / "other", tokens_per_example=128)
    assert [s.budget_steps for s in without.studies()] == [s.budget_steps for s in run.studies()]


@pytest.mark.parametrize("name", ["warmup_epochs", "warmup_steps"])
@pytest.mark.parametrize("value", [2, "linear", math.nan])
def test_settings_called_like_ours_may_hold_anything(
    name: str, value: object, tmp_path: Path
) -> None:
    rows = [row for lr in (0.1, 0.2) for row in curve(50, batch_size=8, lr=lr, **{name: value})]
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run", params=["lr", name])
    (row,) = ask(run, "val_loss < 0.3")
    assert row.steps == 40
    assert "its warmup" not in "; ".join(row.warnings)


def test_steps_follow_exactly_from_tokens_however_many(tmp_path: Path) -> None:
    steps = {1: 1, 8.25: 9, 3_000_000: 3_000_000, 7 / 3: 3, 3.0000001: 3}
    given = [*steps, math.inf, math.nan]
    rows = [{"batch_size": 8, "lr": 0.1, "seen": 80 * n, "val_loss": 1} for n in given]
    mapping = {"step": "seen", "unit": "tokens", "tokens_per_example": 10}
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run", **mapping)
    found = run.measurements(run.studies()[0].key)["step"].to_pylist()
    assert found == sorted({*steps.values()})


def test_what_is_called_as_no_metric_and_no_run_can_be_is_guessed_to_be_neither(
    tmp_path: Path,
) -> None:
    for number in range(2):
        place = tmp_path / f"source/{number}"
        place.mkdir(parents=True)
        rows = [row | dict.fromkeys(("examples", "trial"), row["step"]) for row in curve(50)]
        write(place / "history.csv", rows)
        (place / "config.json").write_text(json.dumps({"run": "x", "batch_size": 8, "lr": number}))
    run = imported(tmp_path / "source", tmp_path / "run")
    assert run.sweep()["mapping"]["metrics"] == ["val_loss"]
    assert [study.trials for study in run.studies()] == [2]


def test_seconds_on_an_unknown_number_of_ranks_are_no_step_times(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", (row | {"seconds": row["step"]} for row in curve(90, bs=8)))
    run = imported(source, tmp_path / "run", seconds="seconds")
    (study,) = run.studies()
    assert run.trials(study.key)["seconds"].to_pylist() == [90]
    assert step_times(run, [study]) == []


# Mappings


def test_a_guess_is_a_mapping(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", [{"n": 1} | dict(row) for row in curve(90, bs=8, lr=1, y=2)])
    said = called("import", source, "--guess")
    assert yaml.safe_load(said)["batch_size"] == ["bs"]
    (tmp_path / "map.yaml").write_text(said)
    again = called("import", source, "--guess", "--map", tmp_path / "map.yaml")
    assert yaml.safe_load(again) == yaml.safe_load(said)
    (tmp_path / "map.yaml").write_text("step: n\nunit: steps")
    again = called("import", source, "--guess", "--map", tmp_path / "map.yaml")
    assert yaml.safe_load(again)["unit"] == "steps", "a name like epoch would say otherwise"
    (tmp_path / "map.yaml").write_text("recipe: lr\nparams: lr")
    again = called("import", source, "--guess", "--map", tmp_path / "map.yaml")
    assert yaml.safe_load(again)["recipe"] == ["lr"]


def test_texts_of_single_rows_name_runs_only_if_nothing_else_does(tmp_path: Path) -> None:
    rows = [row for rate in (0.1, 0.2) for row in curve(50, batch_size=8, lr=rate)]
    told = write(tmp_path / "a.csv", [{**r, "at": f"1.2.24 {n}"} for n, r in enumerate(rows)])
    (study,) = imported(told, tmp_path / "told", params=["lr"]).studies()
    assert (study.trials, study.repeats) == (2, 0)
    same = write(tmp_path / "b.csv", [{**rows[-1], "job": f"job {n}"} for n in range(5)])
    (study,) = imported(same, tmp_path / "same", params=["lr"]).studies()
    assert (study.trials, study.repeats) == (1, 4)


@pytest.mark.parametrize(
    ("mapping", "code", "shown"),
    [
        ({"batch": "bs"}, "unknown-name", ["'batch'", "batch_size"]),
        ({"step": "stepp"}, "unknown-name", ["'stepp'", "step"]),
        ({"params": [3]}, "wrong-value", ["params"]),
        ({"unit": "miles"}, "wrong-value", ["miles", "tokens"]),
        ({"tokens_per_example": 0}, "wrong-value", ["tokens_per_example"]),
        ({"goal": "val_loss"}, "wrong-value", ["val_loss"]),
        ({"step": None}, "mapping", ["step"]),
        ({"batch_size": None}, "mapping", ["batch_size", "'bs'"]),
        ({"metrics": []}, "mapping", ["metrics"]),
        ({"unit": "epochs"}, "mapping", ["examples"]),
        ({"unit": "tokens"}, "mapping", ["tokens_per_example"]),
        ({"step": "epoch"}, "mapping", ["examples"]),
        ({"metrics": "seconds"}, "mapping", ["seconds"]),
        ({"goal": "val_los < 3"}, "mapping", ["val_los < 3"]),
    ],
)
def test_a_mapping_that_cannot_be(
    mapping: Any, code: str, shown: list[str], tmp_path: Path
) -> None:
    source = write(tmp_path / "a.csv", curve(50, bs=8, lr=0.1, seconds=3, epoch=1))
    with refused(code, *shown):
        imported(source, tmp_path / "run", **mapping)
    assert not (tmp_path / "run/studies.json").exists()


@pytest.mark.parametrize(
    ("size", "parts", "known"),
    [
        ("train_batch_size", {"gradient_accumulation_steps": 4, "world_size": 1}, False),
        ("batch_size", {"n_gpus": 8}, False),
        ("batch_size", {"grad_acc": 4}, False),
        ("batch_size", {"num_processes": 2}, False),
        ("batch_size", {"gradient_accumulation_steps": 1, "n_gpus": 1}, True),
        ("global_batch_size", {"accumulate_grad_batches": 4, "devices": 2}, True),
    ],
)
def test_the_batch_size_of_a_device_or_a_pass_is_not_taken_for_the_whole(
    size: str, parts: dict[str, int], known: bool, tmp_path: Path
) -> None:
    rows = [row for lr in (0.1, 0.2) for row in curve(50, **{size: 8, "lr": lr}, **parts)]
    source = write(tmp_path / "a.csv", rows)
    assert yaml.safe_load(called("import", source, "--guess")).get("batch_size") == (
        [size] if known else None
    )


def test_columns_that_may_be_meant_are_named_first(tmp_path: Path) -> None:
    row = {f"setting_{n}": n for n in range(200)} | {"data.batch_size": 8, "step": 1, "loss": 2.5}
    with refused("mapping", "'data.batch_size'"):
        imported(write(tmp_path / "a.csv", [row]), tmp_path / "run")


def test_a_folder_of_nothing_known_is_told_what_could_be(tmp_path: Path) -> None:
    (tmp_path / "mlruns/0/metrics").mkdir(parents=True)
    (tmp_path / "mlruns/0/metrics/loss").write_text("1795860379000 2.5 10")
    with refused("no-study", "event files", "sqlite:///FILE"):
        imported(tmp_path / "mlruns", tmp_path / "run")


def test_a_setting_called_like_what_was_measured_hides_it_only_if_it_is_one(tmp_path: Path) -> None:
    for size in (8, 16):
        place = tmp_path / f"runs/{size}"
        place.mkdir(parents=True)
        settings = {"batch_size": size, "loss": "mse", "lr": 0.1, "step": 1000}
        (place / "config.json").write_text(json.dumps(settings))
        write(place / "a.csv", [{"step": at, "loss": 10 / at, "lr": 1 / at} for at in (10, 20, 30)])
    found = ask(imported(tmp_path / "runs", tmp_path / "run", params=["lr"]), "loss < 0.6")
    assert [(row.steps, row.params) for row in found] == [(20, {"lr": 0.1})] * 2


def test_tokens_that_a_run_has_seen_are_no_scale(tmp_path: Path) -> None:
    rows = {size: [{"tokens": at * 4096 * size, "loss": 10 / at} for at in range(1, 41)]
            for size in (8, 16)}  # fmt: skip
    table = [{"run": f"r{size}", "batch_size": size, "step": at, **row}
             for size, each in rows.items() for at, row in enumerate(each, 1)]  # fmt: skip
    for size, each in rows.items():
        (place := tmp_path / f"runs/{size}").mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"batch_size": size, "steps": 5000}))
        write(place / "a.csv", each)
    for source, mapping in (
        (write(tmp_path / "a.csv", table), {}),
        (tmp_path / "runs", {"tokens_per_example": 4096}),
    ):
        found = ask(imported(source, tmp_path / f"of_{source.stem}", **mapping), "loss < 0.6")
        assert [(row.batch_size, row.steps) for row in found] == [(8, 17), (16, 17)]
        assert {row.workload for row in found} == {source.stem}


def test_a_configuration_in_json_is_no_yaml(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", curve(50))
    config, settings = tmp_path / "config.json", {"batch_size": 8, "note": "\U0001f600"}
    config.write_text(json.dumps(settings, indent="\t"))
    assert imported(tmp_path, tmp_path / "run").studies()[0].batch_size == 8
    config.write_text(json.dumps([settings]))
    # Why there is no batch size is told.
    with refused("mapping", "config.json: is not a JSON object."):
        imported(tmp_path, tmp_path / "other")


def test_a_table_without_rows_holds_no_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("bs,d,x,loss\n")
    with refused("no-study", "run"):
        imported(
            tmp_path / "a.csv", tmp_path / "run", scale={"data": "d"}, batch_size="bs", metrics="x"
        )


# Round trips: what a run of this project measured, as other programs write it


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A tiny run, reported to trackers, and its trainings: settings and measurements."""
    folder, key = tmp_path_factory.mktemp("trained"), "0123456789abcdef" * 3
    sweep = {**TINY, "batch_sizes": [16, 64], "repeats": 2, "search": {"trials": 3}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_API_KEY", key[:40])
        result = orchestrate(
            "sweep", folder / "sweep.yaml", "--no-ray", "--out", folder / "run",
            "--track", "tensorboard", "--track", "wandb",
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in files if key[:40].encode() in file.read_bytes()]
    run = RunFiles.open(folder / "run")
    return folder / "run", [
        {
            "workload": study.workload, "recipe": study.recipe, "batch_size": study.batch_size,
            "seed": one.trial.seed, "status": one.outcome.status, **one.trial.params,
            "measured": [{"step": m.step, **m.metrics} for m in one.measurements],
        }
        for study in run.studies() for one in run.finished(study)
    ]  # fmt: skip


def rows_of(trainings: list[dict[str, Any]]) -> Iterator[Row]:
    for one in trainings:
        settings = {name: value for name, value in one.items() if name != "measured"}
        yield from (settings | measured for measured in one["measured"])


def as_parquet(run: Path, trainings: list[dict[str, Any]], folder: Path) -> Path:
    pd.DataFrame(rows_of(trainings)).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def as_histories(run: Path, trainings: list[dict[str, Any]], folder: Path) -> Path:
    """Their settings are in a file beside each, or in the first line, which may begin with a
    mark."""
    for number, one in enumerate(trainings):
        place, lines = folder / f"histories/{number:03}", one["measured"]
        place.mkdir(parents=True)
        settings = {name: value for name, value in one.items() if name != "measured"}
        if number % 2:
            lines = [settings, *lines]
        else:
            config = {name: {"value": value} for name, value in settings.items()}
            (place / "config.yaml").write_text(yaml.safe_dump(config))
        file = place / f"history.{('jsonl', 'ndjson')[number % 2]}"
        file.write_text("\n".join(map(json.dumps, lines)), ("utf-8", "utf-8-sig")[number % 2])
    return folder / "histories"


def as_optuna(run: Path, trainings: list[dict[str, Any]], folder: Path) -> str:
    import optuna

    metric = "val/error"
    storage = f"sqlite:///{folder}/optuna.db"
    study = optuna.create_study(storage=storage)
    for one in trainings:
        rates = {name: one[name] for name in ("learning_rate",) if name in one}
        fixed = {k: v for k, v in one.items() if k not in (*rates, "measured")}
        study.add_trial(
            optuna.trial.create_trial(
                value=1.0, user_attrs=fixed, params=rates,
                distributions={n: optuna.distributions.FloatDistribution(0, 1e3) for n in rates},
                intermediate_values={m["step"]: m[metric] for m in one["measured"]},
            )
        )  # fmt: skip
    return storage


SOURCES: dict[str, Callable[[Path, list[dict[str, Any]], Path], Path | str]] = {
    "parquet": as_parquet,
    "histories": as_histories,
    "tensorboard": lambda run, trainings, folder: run / "tensorboard",
    "wandb": lambda run, trainings, folder: run / "wandb",
    "optuna": as_optuna,
}


@pytest.mark.dear
@pytest.mark.parametrize("source", SOURCES)
def test_there_and_back(
    source: str, trained: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    run, trainings = trained
    (goal,) = RunFiles.open(run).studies()[0].goals
    expected = frontier_of(RunFiles.open(run))
    back = imported(SOURCES[source](run, trainings, tmp_path), tmp_path / "back")
    metric = "value" if source == "optuna" else goal.metric
    found = ask(back, f"{metric} < {goal.bound}")
    assert len(found) == len(expected) > 1
    for there, here in zip(expected, found, strict=True):
        assert there.repeats is not None
        assert here.repeats is not None
        assert (here.workload, here.recipe) == (there.workload, there.recipe)
        assert here.params == pytest.approx(there.params)
        assert (here.steps, here.censored) == (there.steps, False)
        assert here.repeats.median == there.repeats.median
        assert here.repeats.steps == there.repeats.steps


# Hostile input


def written(folder: Path, values: Mapping[int, float], tag: str) -> Path:
    """A file of events with these values at these steps."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, value in values.items():
            writer.add_scalar(tag, value, step)
        writer.add_text("notes", "none")
    return max(folder.glob("*tfevents*"))


def losses(last: int, times: float = 1) -> dict[int, float]:
    return {row["step"]: times * row["val_loss"] for row in curve(last)}


def read_at(lengths: Iterable[int], file: Path, source: Path, step: str) -> list[int]:
    """The last step that is read of a file that is cut at each length; 0 if there is none."""
    content, last = file.read_bytes(), []
    for length in lengths:
        file.write_bytes(content[:length])
        last.append(0)
        with suppress(BadInput, KeyError):
            rows = read_source(str(source))
            assert all(said.endswith(": ends within a record") for said in rows.problems)
            last[-1] = max(rows.table.select(["val_loss", step])[1].to_pylist())
    return last


def test_event_files_cut_anywhere(tmp_path: Path) -> None:
    file = written(tmp_path / "runs/batch_size=8,lr=0.1", losses(60), "val_loss")
    found = read_at(range(file.stat().st_size), file, tmp_path / "runs", "step")
    assert found == sorted(found)
    assert {*found} == {0, 10, 20, 30, 40, 50, 60}


@pytest.mark.filterwarnings("ignore")
def test_offline_runs_cut_anywhere(tmp_path: Path) -> None:
    """One that is longer than a block of 32 KiB, and with a record across two blocks."""
    wandb = pytest.importorskip("wandb")
    config = {"batch_size": 8, "lr": 0.1, "note": "x" * 40_000}
    quiet = wandb.Settings(x_disable_meta=True, x_disable_stats=True, silent=True)
    run = wandb.init(mode="offline", dir=str(tmp_path), config=config, project="p", settings=quiet)
    for row in curve(60):
        run.log({"val_loss": row["val_loss"]}, step=row["step"])
    run.finish()
    wandb.teardown()  # which writes the rest
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    size = file.stat().st_size
    lengths = [*range(60), *range(size - 1500, size + 1, 7), size]
    found = read_at(lengths, file, tmp_path / "wandb", "_step")
    assert found == sorted(found)
    assert {20, 30, 40, 50, 60} <= {*found}


VALID = [{"batch_size": size, "lr": 0.1, "seed": seed, "step": step, "val_loss": 9 / step}
         for size in (8, 16) for seed in (0, 1) for step in (10, 20, 30)]  # fmt: skip

DAMAGED = ("a.csv", "a.jsonl", "a.parquet", "runs/8/events.tfevents.1", "runs/8/x.wandb",
           "runs/8/config.yaml", "runs/a.csv", "a.log")  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_sources_are_answered(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(VALID), path)
    elif "tfevents" in name:
        path.write_bytes(written(tmp_path / "other", losses(60), "val_loss").read_bytes())
    elif name.endswith((".csv", ".yaml")):
        write(path, VALID)
    else:
        path.write_text("\n".join(map(json.dumps, VALID)))
    if name.startswith("runs/8"):
        write(path.parent / "other.csv", VALID)
    content = path.read_bytes()
    start, end = content[: len(content) // 2], content[len(content) // 2 :]
    odd = (b"\0\xff\x1b[2J", b'{"a": [1e999, "\\ud800"]}', b"[" * 10**5)
    for number, damaged in enumerate((b"", start, *(start + junk + end for junk in odd))):
        path.write_bytes(damaged)
        run = tmp_path / f"run-{number}"
        code, said = answer("import", tmp_path / name.partition("/8")[0], "--out", run)
        assert code in (0, 2), said
        if code == 0 and damaged == start:
            assert answer("frontier", run, "--goal=val_loss<0.5")[0] in (0, 2)


def test_folders_of_one_run_are_no_repeats(tmp_path: Path) -> None:
    """As Keras, and as torch's add_scalars make them."""
    for size in (8, 16):
        place = tmp_path / f"runs/batch_size={size},lr=0.1"
        for folder, tag, times in [
            ("train", "loss", 1), ("validation", "loss", 2), (".", "rate", 3),
            ("a_b_seen", "a/b", 4), ("a_b_new", "a/b", 5),
        ]:  # fmt: skip
            written(place / folder, losses(150, times), tag)
    run = imported(tmp_path / "runs", tmp_path / "run")
    assert [(study.trials, study.repeats) for study in run.studies()] == [(1, 0)] * 2
    passed = {"train/loss": 50, "validation/loss": 90, "rate": 140, "a_b_new/a/b": None}
    for metric, step in passed.items():
        assert [row.steps for row in ask(run, f"{metric} < 0.23")] == [step] * 2


def test_numbers_of_32_bits_pass_no_goal_that_they_equal(tmp_path: Path) -> None:
    rows = [{"batch_size": 8, "step": step, "acc": step / 100} for step in range(10, 101, 10)]
    pd.DataFrame(rows).astype({"acc": "float32"}).to_parquet(tmp_path / "a.parquet")
    written(tmp_path / "runs/batch_size=8", {row["step"]: row["acc"] for row in rows}, "acc")
    for source in ("a.parquet", "runs"):
        run = imported(tmp_path / source, tmp_path / f"run-{source}")
        assert [ask(run, f"acc > {bound}")[0].steps for bound in (0.6, 0.9)] == [70, 100]


def test_names_and_sizes_are_bounded(tmp_path: Path) -> None:
    row = {"batch_size": 8, "lr": 0.1, "step": 10, "val_loss": 1.0}
    odd = {"\x1b[31mloss": 1, "x" * 300: 2, "": 3, "val/é [red]": 4.5}
    run = imported(write(tmp_path / "a.csv", [{**row, **odd}]), tmp_path / "run")
    assert problems(run).count("has no printable name") == 3
    with refused("unreadable", "1,001 columns"):
        imported(write(tmp_path / "b.csv", [{f"c{n}": n for n in range(1001)}]), tmp_path / "other")
    long = [{**row, "workload": "\u3042" * 99}, {**row, "workload": "a/../b"}]
    kept = imported(write(tmp_path / "c.csv", long), tmp_path / "kept")
    assert [study.workload for study in kept.studies()] == ["a/../b"]
    made = {path.name for path in tmp_path.iterdir() if path.suffix != ".yaml"}
    assert made == {"a.csv", "b.csv", "c.csv", "run", "kept"}
    with refused("unknown-source", "a.txt"):
        imported(tmp_path / "a.txt", tmp_path / "other")
    half = {**row, "note": "\ud800", "batch_size": 16}
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, [row, half])))
    assert len(imported(tmp_path / "d.jsonl", tmp_path / "half").studies()) == 2


def test_semicolons_and_tabs_may_stand_between_columns(tmp_path: Path) -> None:
    for between, point in (("\t", "."), ("\t", ","), (";", "."), (";", ",")):
        # The first loss is a whole number, from which the decimal point can't be seen.
        rows = [f"{row['step']}{between}8{between}{10 / row['step']:.9g}" for row in curve(150)]
        text = "\n".join(rows).replace(".", point)
        (tmp_path / "a.csv").write_text(f"step{between}batch_size{between}val_loss\n{text}")
        run = imported(tmp_path / "a.csv", tmp_path / f"{between}{point}")
        assert [row.steps for row in ask(run, "val_loss < 0.1")] == [110]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_numbers_as_people_and_spreadsheets_write_them(encoding: str, tmp_path: Path) -> None:
    rows = [("Größe", "batch_size", " step ", "val:err")] * 2  # a restart wrote them again
    rows[1:1] = [("1", "1,024", f"{row['step'] * 10:,}", f"{100 * row['val_loss']:.2f}%")
                 for row in curve(150)]  # fmt: skip
    points, commas, tabs = (tmp_path / f"{name}.csv" for name in "abc")
    points.write_text("\n".join('"' + '","'.join(row) + '"' for row in rows), encoding)
    swapped = "\n".join(";".join(row) for row in rows[:-1]).translate(str.maketrans(",.", ".,"))
    commas.write_text(swapped.replace("%", ""), encoding)
    tabs.write_text("\n".join(map("\t".join, rows)), encoding)
    for source in (points, commas, tabs):
        (row,) = ask(imported(source, tmp_path / source.stem, params=["Größe"]), "val_err < 10")
        assert (row.batch_size, row.steps) == (1024, 1100)


def test_names_of_runs_are_no_numbers(tmp_path: Path) -> None:
    names = ("3.1", "3.10", "1_11", "11_1", "1e2")
    rows = [row for name in names for row in curve(50, run=name, batch_size=8)]
    lines = tmp_path / "b.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)))
    for source in (write(tmp_path / "a.csv", rows), lines):
        (study,) = imported(source, tmp_path / source.stem).studies()
        assert (study.trials, study.repeats) == (1, len(names) - 1)


def test_a_name_that_runs_share_is_told_apart_by_their_settings(tmp_path: Path) -> None:
    for name in ("trial", "name"):
        rows = [
            {**row, name: lr if name == "trial" else "all"}
            for size in (8, 16) for lr in (0.1, 0.2) for seed in (1, 2)
            for row in curve(50, batch_size=size, lr=lr, seed=seed)
        ]  # fmt: skip
        run = imported(write(tmp_path / "a.csv", rows), tmp_path / name)
        assert [(study.trials, study.repeats) for study in run.studies()] == [(2, 1)] * 2
    # A run that was resumed has some steps twice, of which a schedule may know too little.
    again = [row for n in (1, 2) for row in curve(60, run="a", batch_size=8, n=n)]
    rows = [{**row, "lr": row["n"] / row["step"], "n": 1} for row in again]
    (study,) = imported(write(tmp_path / "a.csv", rows), tmp_path / "again").studies()
    assert (study.trials, study.repeats) == (1, 0)


def test_an_import_begins_anew_where_another_was_killed(tmp_path: Path) -> None:
    rows = [row for seed in range(3) for row in curve(150, batch_size=8, lr=0.1, seed=seed)]
    source = write(tmp_path / "a.csv", rows)
    first = imported(source, tmp_path / "run")
    assert first.repeats.trials(first.studies()[0].key).num_rows == 2
    for last in ("studies.json", "sweep.yaml"):
        (tmp_path / "run" / last).unlink()
    second = imported(source, tmp_path / "run", params=["lr", "seed"], seed=[])
    (study,) = second.studies()
    assert (study.trials, second.repeats.trials(study.key).num_rows) == (3, 0)


# What strangers misread


def losses_at(rates: Mapping[int, Iterable[float]], best: int = 2) -> list[Row]:
    """By batch size: runs of these rates, of which that in place `best` passes a goal first."""
    return [
        {
            "batch_size": size,
            "lr": rate,
            "step": step,
            "val_loss": (1 + abs(place - best)) * 10 / step,
        }
        for size, of_size in rates.items()
        for place, rate in enumerate(of_size)
        for step in range(10, 101, 10)
    ]


def test_columns_of_a_history_that_stay_the_same_are_settings(tmp_path: Path) -> None:
    """A folder with a file per run is guessed as the table of all of them."""
    rows = [
        {"optimizer": name, "temperature": heat, "acc": 0.5, "note": f"{name} {heat} {seed}", **row}
        for name in ("sgd", "adam") for heat in (1, 2) for seed in (0, 1)
        for row in curve(50, batch_size=8, lr=0.1, seed=seed)
    ]  # fmt: skip
    folder = tmp_path / "runs"
    folder.mkdir()
    for number in range(8):
        write(folder / f"{number}.csv", rows[5 * number : 5 * number + 5])
    assert len(rows) == 40
    guess = read_source(str(folder)).guess({})
    assert (guess.recipe, guess.seed) == (("optimizer",), ("seed",))
    assert {*guess.params} == {"lr", "temperature"}
    assert {*guess.metrics} == {"val_loss", "acc"}
    run = imported(folder, tmp_path / "run")
    assert sorted((s.recipe, s.trials, s.repeats) for s in run.studies()) == [
        ("adam", 2, 1), ("sgd", 2, 1),
    ]  # fmt: skip


def test_a_value_is_near_an_end_of_those_tried_at_its_batch_size(tmp_path: Path) -> None:
    rates = {8: (0.1, 0.2, 0.3), 16: (1, 2, 3)}
    run = imported(write(tmp_path / "a.csv", losses_at(rates)), tmp_path / "run")
    assert [row.warnings for row in ask(run, "val_loss < 1.5")] == [
        ("lr 0.3 is near the upper end, 0.3, of those tried here",),
        ("lr 3 is near the upper end, 3, of those tried here",),
    ]
    middle = imported(write(tmp_path / "b.csv", losses_at(rates, 1)), tmp_path / "middle")
    assert not any(row.warnings for row in ask(middle, "val_loss < 1.5"))


def test_a_recipe_of_one_setting_is_said_to_be_untuned(tmp_path: Path) -> None:
    for name, rates, said in (
        ("one", {8: (0.1,), 16: (0.1,)}, " if it is: as trained, lr 0.1."),
        ("ruled", {8: (0.1,), 16: (0.2,)}, "than it is."),
    ):
        run = imported(write(tmp_path / f"{name}.csv", losses_at(rates)), tmp_path / name)
        assert str(unknown_of(run)).endswith(said)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (2, "medians of 1 training of a point, with seeds that did not choose it"),
        (5, "medians of 2 trainings of a point"),
    ],
)
def test_methods_say_of_how_many_trainings_medians_are(
    seeds: int, said: str, tmp_path: Path
) -> None:
    rows = [row for seed in range(seeds) for size in (8, 16) for rate in (0.1, 0.2)
            for row in curve(100, batch_size=size, lr=rate, seed=seed)]  # fmt: skip
    run = imported(write(tmp_path / "a.csv", rows), tmp_path / "run")
    methods = methods_of(run, ask(run, "val_loss < 1.5"))
    assert said in methods
    assert "what other trials would have found" not in methods


def test_steps_that_may_be_calls_of_log_are_counted(tmp_path: Path) -> None:
    for first, expected in ((0, {"runs whose _step is 0, 1, 2 and so on": 1}), (1, {})):
        rows = [{"_step": step, "batch_size": 8, "lr": 0.1, "val_loss": 1.0 / (step + 1)}
                for step in range(first, 9)]  # fmt: skip
        run = imported(write(tmp_path / "a.csv", rows), tmp_path / f"run{first}")
        assert counted(run) == expected


def test_a_table_of_steps_to_a_goal_is_read_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [(8, 0.1, 400), (8, 0.2, "NaN"), (16, 0.1, "300.0"), (16, 0.2, 200)]
    rows = [{"batch_size": size, "lr": rate, "steps_to_goal": steps} for size, rate, steps in ends]
    table = write(tmp_path / "ends.csv", rows)
    with pytest.raises(BadInput, match="make two rows per run"):
        imported(table, tmp_path / "no")
    page = (ROOT / "docs" / "outside-runs.md").read_text()
    (code,) = re.findall(r'```python\n([^`]*"ends.csv"[^`]*)```', page)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    found = ask(imported(tmp_path / "runs.jsonl", tmp_path / "run"), "reached > 0")
    assert [(row.batch_size, row.steps, row.resolution) for row in found] == [
        (8, 400, 1), (16, 200, 1),
    ]  # fmt: skip
