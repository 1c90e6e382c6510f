"""A sweep that names a scale: one workload for each size."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import TINY, refused
from test_growth import made

from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.schema import schema_of
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.planning.sweep_file import load_sweep, validated

QUADRATIC = "noisy_quadratic?replicas=2&d={d}"
PROGRAM = {
    "name": "gpt",
    "program": "python train.py --width {width} --rows {examples} -b {batch_size} --lr {rate}",
    "goal": "loss < 3",
}


def swept(scale: Any, **changes: Any) -> Sweep:
    rest = {name: value for name, value in TINY.items() if name not in ("workloads", "goals")}
    return validated({**rest, "scale": scale, **changes}, "f")


def test_each_combination_is_a_workload_with_its_place() -> None:
    scale = {"workload": "digits/mlp?classes={classes}", "classes": [3, 10], "examples": [100, 200]}
    sweep = swept(scale, workloads=["digits/cnn"])
    names = [f"digits/mlp?classes={c}&train_examples={n}" for c in (3, 10) for n in (100, 200)]
    assert sweep.workloads == ["digits/cnn", *names]
    assert sweep.scales[names[1]] == {"classes": 3, "data": 200}
    smaller = sweep.model_copy(update={"batch_sizes": [64, 100]})
    assert {s.workload: s.train_size for s in plan(smaller).studies}[names[1]] == 200
    assert validated(sweep.resolved(), "what a run keeps") == sweep


def test_a_program_gets_the_numbers_of_its_size_and_keeps_placeholders_of_trials() -> None:
    scale = {"workload": PROGRAM, "width": [64, 0.5], "examples": [1000]}
    space = {"rate": {"low": 0.1, "high": 1}}
    sweep = swept(scale, recipes=[{"name": "r", "space": space}], budget={"epochs": 1})
    name = "gpt?width=0.5&examples=1000"
    assert sweep.scales[name] == {"width": 0.5, "data": 1000}
    entry = sweep.programs[name]
    command = "python train.py --width 0.5 --rows 1000 -b {batch_size} --lr {rate}"
    assert (entry.program, entry.examples, entry.goal) == (command, 1000, "loss < 3.0")


def test_a_run_grows_by_a_size_and_keeps_the_places_of_all(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    rest = {"name": "x", "recipes": ["sgd"], "batch_sizes": [4], "budget": {"steps": 10}}
    file.write_text(str({**rest, "scale": {"workload": QUADRATIC, "d": [10, 20]}}))
    run, _ = made(tmp_path / "run", file)
    assert run.sweep()["scales"]["noisy_quadratic?replicas=2&d=20"] == {"d": 20}
    larger = plan(load_sweep(file, ["scale.d=[10, 20, 40]"]))
    refuse_incomparable(run, larger)
    assert [sizes["d"] for sizes in larger.sweep.scales.values()] == [10, 20, 40]
    with refused("incomparable", 10):
        refuse_incomparable(run, plan(load_sweep(file, ["scale.d=[20]"])))


@pytest.mark.parametrize(
    ("code", "scale", "said"),
    [
        ("missing-key", {"d": [1]}, "scale.workload"),
        ("no-effect", {"workload": QUADRATIC, "d": [1], "width": [2]}, "width"),
        ("no-effect", {"workload": {**PROGRAM, "program": "a"}, "examples": [2]}, "examples"),
        ("no-effect", {"workload": {"function": "a.py:f"}, "width": [2]}, "width"),
        ("wrong-value", {"workload": QUADRATIC, "d": [1, -2]}, "scale.d.1"),
        ("wrong-value", {"workload": QUADRATIC, "d": []}, "scale.d"),
        ("wrong-value", {"workload": QUADRATIC}, "d"),
        ("given-twice", {"workload": QUADRATIC, "d": [1, 1.0]}, "d"),
        ("wrong-value", {"workload": "digits/mlp", "examples": [2.5]}, "scale.examples.0"),
        ("wrong-value", 5, 5),
        ("given-twice", {"workload": "a.py:A?x={seed}", "seed": [1]}, "seed"),
        ("given-twice", {"workload": {**PROGRAM, "examples": 3}, "width": [1], "examples": [2]},
         "examples"),
        ("too-many", {"workload": "a.py:A?x={x}&y={y}", "x": [*range(1, 16)],
                      "y": [*range(1, 16)]}, 225),
    ],
)  # fmt: skip
def test_sizes_that_say_nothing_are_refused(code: str, scale: Any, said: object) -> None:
    with refused(code, said):
        plan(swept(scale))


def test_the_schema_takes_a_scale_in_place_of_workloads_and_not_neither() -> None:
    rest = {"name": "x", "recipes": ["sgd"], "batch_sizes": [4]}
    check = jsonschema.Draft202012Validator(schema_of("sweep"))
    for workload in (QUADRATIC, PROGRAM):
        assert check.is_valid({**rest, "scale": {"workload": workload, "d": [10, 0.5]}})
    assert not check.is_valid({**rest, "scale": {"workload": QUADRATIC, "d": [-1]}})
    assert not check.is_valid(rest)
