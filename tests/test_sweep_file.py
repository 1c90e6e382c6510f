"""Bad input is refused before anything starts. The message names the key, the value and what is
accepted."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import called, refused

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import SWEEPS, find_sweep_file, load_sweep

SweepFile = Callable[..., Path]


def space(**entries: Any) -> dict[str, Any]:
    return {"recipes": [{"name": "sgd", "space": entries}]}


def schedule(**entries: Any) -> dict[str, Any]:
    return {"recipes": [{"name": "sgd", "schedule": entries}]}


def search(algorithm: str, **keys: Any) -> dict[str, Any]:
    return {"search": {"algorithm": algorithm, **keys}}


def ladder(low: object, high: object, factor: float) -> dict[str, Any]:
    return {"batch_sizes": {"from": low, "to": high, "factor": factor}}


def named(name: str) -> dict[str, Any]:
    return {"recipes": [{"name": name, "optimizer": "sgd"}]}


def quadratic(options: str, **changes: Any) -> dict[str, Any]:
    return {"workloads": [f"noisy_quadratic?{options}"], "goals": [], "batch_sizes": [4], **changes}


SGD, BILLION = "recipe 'sgd'", 1000000000
RECIPES = [{"name": f"r{i}", "optimizer": "sgd"} for i in range(201)]
DECAYING = {"name": "sgd", "schedule": {"decay": "linear"}}
MOMENTUM = {"name": "momentum", "space": {"momentum": 2}}
AXES = {"learning_rate": 9999, "momentum": 9999}
OFTEN = {"evaluate": {"spacing": 0, "min_examples": 1}}
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "batch-too-large": [({"batch_sizes": [5000]}, "batch_sizes", 5000, 1400, "digits/mlp")],
    "empty": [({"batch_sizes": []}, "batch_sizes")],
    "endless-data": [
        (quadratic("", **schedule(warmup_epochs=1)), "'warmup_epochs'", "'warmup_steps'"),
        (quadratic("", batch_sizes=["full"]), "batch_sizes", "`full`", "noisy_quadratic?"),
    ],
    "given-twice": [
        ({"recipes": ["sgd", "sgd"]}, "recipe", "sgd"),
        ({"goals": ["val/error < 0.1", "val/error<0.1"]}, "goal", "val/error < 0.1"),
        ({"recipes": [{**DECAYING, "space": {"decay": "cosine"}}]}, SGD, "'decay'"),
    ],
    "missing-key": [
        ({"budget": {}}, "budget", "steps", "epochs"),
        ({"workloads": None}, "workloads"),
        ({"repeats": {"of": 2}}, "repeats.count"),
        (search("points"), "search", "`points`"),
    ],
    "missing-value": [(search("points", points=[{}]), SGD, "points", "learning_rate")],
    "no-effect": [
        (schedule(power=2), SGD, "'power'"),
        (search("halton", points=[{"learning_rate": 1}]), "search", "`points`"),
        (search("tpe", extend=True), "search", "`extend`", "halton"),
    ],
    "not-importable": [
        ({"workloads": ["no.such:Thing"]}, "'no.such:Thing'"),
        ({"workloads": ["no_such.py:Thing"]}, "'no_such.py:Thing'"),
    ],
    "not-together": [
        ({"repeats": {"count": 4, "of": 2}, "repeat_best": 3}, "`repeat_best`", "`repeats.of`"),
        ({"stop": {"at_goal": False, "dominated": True}}, "stop", "`dominated`"),
        ({"branch": {}}, "branch", 2),
        ({"resources": {"gpus_per_device": 0.5, "max_devices": 2}}, "resources", "max_devices 1"),
    ],
    "other-name": [(space(lr=1), SGD, "'lr'", "'learning_rate'")],
    "range-order": [
        (ladder(99, 9, 2), "batch_sizes", 99, 9),
        ({"search": {"trials": 20, "max_launches": 10}}, "search", "`max_launches`", "`trials`"),
    ],
    "too-large": [
        ({"name": "größe" * 50}, "name", 230, 350),
        (named("大" * 31), "recipes.0.name", 230, 279),
        ({"workloads": ["digits/mlp?" + "x" * 250]}, "workloads.0", 230),
    ],
    "too-many": [
        (ladder(1, 64, 1.0000000000000003), "batch_sizes", 200),
        (ladder(1, 64, 1.0000001), "batch_sizes", 200, "41,588,834"),
        ({"recipes": ["momentum"], **search("grid", grid=AXES)}, "100,000 points", "99,980,001"),
        ({"recipes": RECIPES[:101], "batch_sizes": [*range(1, 21)]}, "2,000 studies", "250,000"),
        ({"search": {"trials": 90_000}, "repeats": 40_000}, "250,000", 2, "260,000"),
        ({"budget": {"epochs": 1e9}}, "1,000,000,000", 64, "21,875,000,000"),
        ({**OFTEN, "budget": {"steps": 2_000_000}}, "1,000,000 evaluations", "2,000,002"),
        (space(dropout={"options": [0.1] * 101}), "dropout", "`options`", 100, 101),
    ],
    "unknown-key": [
        ({"recipez": ["sgd"]}, "'recipez'", "'recipes'"),
        ({"search": {"trails": 3}}, "'search.trails'", "'search.trials'"),
        ({"repeats": {"count": 3, "off": 2}}, "'repeats.off'", "'repeats.of'"),
        ({"stop": {"diverged": {"abov": 3}}}, "'stop.diverged.abov'", "'stop.diverged.above'"),
    ],
    "unknown-name": [
        ({"workloads": ["digits/mpl"]}, "'digits/mpl'", "'digits/mlp'"),
        ({"recipes": ["momentun"]}, "'momentun'", "'momentum'"),
        ({"goals": ["val/err < 0.1"]}, "'val/err'", "'val/error'"),
        (schedule(decya="cosine"), "'decya'", "'decay'"),
        (space(precision={"options": ["float32", "f8"]}), SGD, "precision 'f8'"),
        (search("haltom"), "'haltom'", "'halton'"),
        (search("points", points=[{"lr": 1}]), SGD, "'lr'"),
        (search("grid", grid={"lr": 3}), "grid", "'lr'"),
        (space(dropout={"options": [0.1], "when": {"a": 1}}), "`when` of 'dropout'", "'a'"),
        (quadratic("dd=3"), "'noisy_quadratic'", "'dd'", "'d'"),
    ],
    "wrong-name": [({"name": ".."}, "name", "'..'"), (named("a\x1b[31m"), "recipes.0.name")],
    "wrong-value": [
        ({"batch_sizes": [8, 1.5]}, "batch_sizes.1:", "string", 1.5),
        (quadratic("d=99999999"), "`d", "10,000,000", 99999999),
        ({"search": {"trials": 0}}, "search.trials", 1, 0),
        (search("points", points=[{"learning_rate": 0}]), "points: learning_rate", "log scale", 0),
        (search("points", points=[{"learning_rate": "x"}]), "points: learning_rate", "'x'"),
        ({"batch_sizes": [10**10]}, "batch_sizes.0", "1,000,000,000", 10**10),
        (ladder(1, "ful", 2), "batch_sizes.to", "`full`", "'ful'"),
        ({"batch_sizes": "full"}, "batch_sizes", "'full'"),
        ({"goals": ["val/error"]}, "goals.0", "'val/error'"),
        (schedule(warmup_fraction={"low": 0, "high": 2}), SGD, "'warmup_fraction'", 1, 2),
        (space(learning_rate="abc"), "'learning_rate'", "'abc'"),
        ({"recipes": [MOMENTUM]}, "'momentum'", 0, 1, 2),
        (space(dropout={"options": 0.1}), "`options`", 0.1),
        (space(dropout={"options": [[0.1]]}), "dropout", "[0.1]"),
        ({"checkpoint": {"every_seconds": math.inf}}, "checkpoint.every_seconds", BILLION, "inf"),
        (quadratic("d=0"), "`d`", 1, 0),
        ({"workloads": [":Blobs"]}, "MODULE:CLASS", "':Blobs'"),
        ({"recipes": RECIPES}, "recipes", "200 items", 201),
        ({"report": {"baseline": "sgd@" + "9" * 200}}, "report.baseline"),
    ],
}
"""The rule that is broken -> changes to a sweep that break it, each with what the message shows.
Bounds of single numbers are in the schema, which test_docs.py compares."""


@pytest.mark.parametrize(
    ("code", "changes", "values"),
    [(code, changes, values) for code, rows in REFUSED.items() for changes, *values in rows],
)
def test_bad_sweeps_are_refused(
    sweep_file: SweepFile, code: str, changes: dict[str, Any], values: list[object]
) -> None:
    with refused(code, *values):
        plan(load_sweep(sweep_file(**changes)))


def test_names_may_be_in_any_script(sweep_file: SweepFile) -> None:
    recipes = [{"name": name, "optimizer": "sgd"} for name in ("大" * 25, "a b/c", "[/red]", "..")]
    planned = plan(load_sweep(sweep_file(name="größe", recipes=recipes, batch_sizes=[4])))
    assert [study.recipe for study in planned.studies] == [recipe["name"] for recipe in recipes]


def test_values_in_messages_are_cut(sweep_file: SweepFile) -> None:
    with refused("wrong-value", "seed") as refusal:
        load_sweep(sweep_file(seed={f"key{i}": ["x" * 1000] * 9 for i in range(99)}))
    assert len(str(refusal.value).partition("seed")[2]) < 150
    with refused("wrong-value", "140 more"):
        load_sweep(sweep_file(goals=[[]] * 150))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nseed: [1\n", ("not-yaml", "line 3")),
        ("a: 1\na: 2", ("not-yaml", "line 2", "'a'")),
        ("- 1", ("wrong-value", "[1]")),
        ("workloads: [digits/mlp?classes=5]", ("not-yaml", "line 1", "`?`")),
    ],
)
def test_unreadable_yaml_names_the_line(tmp_path: Path, text: str, said: Any) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with refused(*said, tmp_path / "bad.yaml"):
        load_sweep(tmp_path / "bad.yaml")


def test_a_run_folder_that_cannot_be_written_is_refused(sweep_file: SweepFile) -> None:
    with refused("unwritable", "/proc/no/run"):
        called("sweep", sweep_file(), "--out", "/proc/no/run")


def test_exponents_without_a_dot_are_numbers(sweep_file: SweepFile) -> None:
    path = sweep_file()
    path.write_text(path.read_text() + "evaluate: {spacing: 1e-1}\n")
    assert load_sweep(path).evaluate.spacing == 0.1


def test_settings_on_the_command_line_win(sweep_file: SweepFile) -> None:
    sweep = load_sweep(sweep_file(), ["search.trials=7", "batch_sizes=[1, full]"])
    assert sweep.search.trials == 7
    assert [study.batch_size for study in plan(sweep).studies] == [1, 1400]
    with refused("wrong-value", "--set", "'search.trials'"):
        load_sweep(sweep_file(), ["search.trials"])


def test_a_ladder_ends_at_its_last_rung(sweep_file: SweepFile) -> None:
    sizes = {"from": 1, "to": "full", "factor": 4}
    studies = plan(load_sweep(sweep_file(batch_sizes=sizes))).studies
    assert [study.batch_size for study in studies] == [1, 4, 16, 64, 256, 1024, 1400]
    exact = plan(load_sweep(sweep_file(batch_sizes={"from": 2, "to": 64, "factor": 2}))).studies
    assert [study.batch_size for study in exact] == [2, 4, 8, 16, 32, 64]


def test_budgets_are_the_larger_of_what_is_given(sweep_file: SweepFile) -> None:
    path = sweep_file(budget={"epochs": 2, "at_least_steps": 30}, batch_sizes=[100, 1400])
    assert [study.budget_steps for study in plan(load_sweep(path)).studies] == [30, 30]
    longer = load_sweep(path, ["budget.at_least_steps=10"])
    assert [study.budget_steps for study in plan(longer).studies] == [28, 10]


def test_a_resolved_sweep_describes_itself(sweep_file: SweepFile, tmp_path: Path) -> None:
    import yaml

    sweep = load_sweep(sweep_file(batch_sizes={"from": 1, "to": "full", "factor": 4}))
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(sweep.resolved()))
    again = load_sweep(tmp_path / "again.yaml")
    assert again == sweep
    assert plan(again).studies == plan(sweep).studies


@pytest.mark.dear
@pytest.mark.parametrize("name", sorted(path.stem for path in SWEEPS.glob("*.yaml")))
def test_the_sweeps_that_come_along_are_valid(name: str, small_data: Path) -> None:
    sweep = load_sweep(find_sweep_file(name), ["batch_sizes=[2]"])
    # The small copy of MNIST is 250 times smaller.
    names = [
        re.sub(r"(?<=train_examples=)\d+", lambda n: str(int(n[0]) // 250), workload)
        for workload in sweep.workloads
    ]
    sweep = sweep.model_copy(update={"workloads": names})
    planned = plan(sweep, small_data)
    assert sweep.name == name
    assert [doubt for doubt in planned.doubts if "ghost" not in doubt] == []
    assert len(planned.studies) == len(sweep.workloads) * len(sweep.recipes)


def test_without_a_name_it_is_the_quickstart() -> None:
    assert len(plan(load_sweep(find_sweep_file(None))).studies) == 21
    with refused("unknown-name", "'quickstrat'", "'quickstart'"):
        find_sweep_file("quickstrat")


def test_how_many_of_the_best_are_repeated_may_be_said_beside_a_mapping(
    sweep_file: Callable[..., Path],
) -> None:
    sweep = load_sweep(sweep_file(repeats={"count": 4}, repeat_best=3))
    assert (sweep.repeats, sweep.repeat_best) == (4, 3)
