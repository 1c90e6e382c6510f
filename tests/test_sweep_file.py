"""Bad input is refused before anything starts. The message names the key, the value and what is
accepted."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import orchestrate

from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import SWEEPS, find_sweep_file, load_sweep
from orchestrator.records import BadInput

SweepFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workloads": ["digits/mpl"]}, "Did you mean 'digits/mlp'"),
        ({"recipes": ["momentun"]}, "Did you mean 'momentum'"),
        ({"recipez": ["sgd"]}, "Did you mean 'recipes'"),
        ({"search": {"trails": 3}}, "Did you mean 'search.trials'"),
        ({"search": {"trials": 0}}, "search.trials.*greater than or equal to 1"),
        ({"batch_sizes": []}, "at least one is needed"),
        ({"batch_sizes": [5000]}, "5000 is more than the 1400 training examples"),
        ({"batch_sizes": [0]}, "whole number from 1 to 1,000,000,000"),
        ({"batch_sizes": {"from": 1, "to": "ful", "factor": 2}}, "or `full`.*'ful'"),
        ({"batch_sizes": {"from": 99, "to": 9, "factor": 2}}, "from <= to"),
        ({"batch_sizes": "full"}, "write a list"),
        ({"goals": ["val/error"]}, "goals.0.*SPLIT/METRIC < NUMBER"),
        ({"goals": ["val/err < 0.1"]}, "Did you mean 'val/error'"),
        ({"budget": {}}, "at least one of steps, epochs"),
        ({"workloads": None}, "workloads: this key is required"),
        ({"recipes": [{"name": "a", "optimizer": "sgd", "space": {"lr": 1}}]}, "'lr'"),
        (
            {"recipes": [{"name": "sgd", "space": {"learning_rate": {"low": 3, "high": 1}}}]},
            "recipe 'sgd'.*learning_rate.*low <= high.*low=3, high=1",
        ),
        ({"recipes": ["sgd", "sgd"]}, "must be named once"),
        ({"recipes": [{"name": "sgd", "schedule": {"decya": "cosine"}}]}, "Did you mean 'decay'"),
        ({"recipes": [{"name": "sgd", "schedule": {"power": 2}}]}, "'power' has no effect"),
        (
            {"recipes": [{"name": "sgd", "schedule": {"warmup_fraction": {"low": 0, "high": 2}}}]},
            "recipe 'sgd': 'warmup_fraction' must be at most 1",
        ),
        (
            {"recipes": [{"name": "sgd", "space": {"precision": {"options": ["float32", "f8"]}}}]},
            "Unknown precision 'f8'",
        ),
        (
            {"recipes": [{"name": "sgd", "space": {"learning_rate": "abc"}}]},
            "'learning_rate' must be a finite number, but got 'abc'",
        ),
        (
            {"recipes": [{"name": "sgd", "space": {"noise_labels": "abc"}}]},
            "'noise_labels' must be a finite number",
        ),
        (
            {"recipes": [{"name": "m", "optimizer": "momentum", "space": {"momentum": 2}}]},
            "'momentum' must be from 0 to below 1",
        ),
        (
            {
                "recipes": [
                    {"name": "sgd", "space": {"decay": "cosine"}, "schedule": {"decay": "linear"}}
                ]
            },
            "in both space and schedule",
        ),
        ({"recipes": [{"name": "sgd", "space": {"dropout": {"options": 0.1}}}]}, "must be a list"),
        ({"stop": {"diverged": {"abov": 3}}}, "Did you mean 'stop.diverged.above'"),
        ({"checkpoint": {"evry_seconds": 3}}, "Did you mean 'checkpoint.every_seconds'"),
        ({"checkpoint": {"every_seconds": math.inf}}, "less than or equal to 1000000000"),
        ({"budget": {"steps": None}}, "at least one of steps, epochs"),
        ({"search": {"algorithm": "haltom"}}, "Did you mean 'halton'"),
        ({"search": {"algorithm": "no_such.py:Sampler"}}, "no Python file"),
        ({"search": {"algorithm": "points"}}, "needs `points`"),
        ({"search": {"points": [{"learning_rate": 1}]}}, "`points` is for algorithm: points"),
        ({"search": {"algorithm": "points", "points": [{"lr": 1}]}}, "points of recipe 'sgd'"),
        ({"search": {"algorithm": "points", "points": [{}]}}, "needs a value for learning_rate"),
        ({"search": {"algorithm": "grid", "grid": {"lr": 3}}}, "axis of the grid"),
        ({"search": {"algorithm": "tpe", "extend": True}}, "`extend` goes with halton"),
        ({"search": {"trials": 20, "max_launches": 10}}, "at least `trials`"),
        ({"stop": {"at_goal": False, "dominated": True}}, "can't be cut"),
        ({"resources": {"gpus_per_device": 0.5, "max_devices": 2}}, "can't share a GPU"),
        (
            {
                "recipes": [
                    {"name": "sgd", "space": {"dropout": {"options": [0.1], "when": {"a": 1}}}}
                ]
            },
            "`when` of 'dropout'",
        ),
        (
            {
                "workloads": ["noisy_quadratic?d=9"],
                "goals": [],
                "batch_sizes": [4],
                "recipes": [{"name": "sgd", "schedule": {"warmup_epochs": 1}}],
            },
            "finite training set",
        ),
        ({"workloads": ["noisy_quadratic?d=0"]}, "from 1 up"),
        ({"workloads": [":Blobs"]}, "MODULE:CLASS"),
        (
            {"workloads": ["noisy_quadratic"], "goals": [], "batch_sizes": ["full"]},
            "examples of noisy_quadratic never end",
        ),
        ({"workloads": ["noisy_quadratic?dd=3"]}, "Did you mean 'd'"),
        ({"workloads": ["no.such:Thing"]}, "can't be imported"),
        ({"workloads": ["no_such.py:Thing"]}, "no Python file"),
        ({"workloads": [".relative:Thing"]}, "MODULE:CLASS or FILE.py:CLASS"),
        ({"workloads": ["noisy_quadratic?d=99999999"]}, "at most 10,000,000 weights"),
        ({"batch_sizes": {"from": 1, "to": 64, "factor": 1.0000000000000003}}, "at most 200, but"),
        ({"batch_sizes": {"from": 1, "to": 64, "factor": 1.0000001}}, "there are 41,588,834"),
        ({"batch_sizes": [10**10]}, "from 1 to 1,000,000,000"),
        ({"search": {"trials": 10**9}}, "less than or equal to 100000"),
        ({"search": {"algorithm": "grid", "trials": 10**9}}, "less than or equal to 100000"),
        (
            {
                "recipes": ["momentum"],
                "search": {"algorithm": "grid", "grid": {"learning_rate": 9999, "momentum": 9999}},
            },
            "at most 100,000 points, but this one has 99,980,001",
        ),
        ({"recipes": [f"r{i}" for i in range(201)]}, "at most 200 items"),
        (
            {
                "recipes": [{"name": f"r{i}", "optimizer": "sgd"} for i in range(101)],
                "batch_sizes": [*range(1, 21)],
            },
            "at most 2,000 studies and 250,000 trials",
        ),
        ({"search": {"trials": 90_000}, "repeats": 40_000}, "2 studies and 260,000 trials or"),
        ({"budget": {"steps": 10**18}}, "less than or equal to 1000000000"),
        ({"budget": {"epochs": 1e300}}, "less than or equal to 1000000000"),
        ({"budget": {"epochs": 1e9}}, "1,000,000,000 steps.*64 it comes to 21,875,000,000"),
        ({"repeats": 10**9}, "repeats.*less than or equal to 100000"),
        ({"seed": 2**63}, "less than or equal to 9223372036854775807"),
        ({"evaluate": {"spacing": 1e308}}, "less than or equal to 1000000"),
        (
            {"evaluate": {"spacing": 0, "min_examples": 1}, "budget": {"steps": 2_000_000}},
            "1,000,000 evaluations.*have about 2,000,002",
        ),
        ({"resources": {"cpus_per_rank": 10**12}}, "less than or equal to 100000"),
        ({"resources": {"gpus_per_device": 5e-324}}, "0, or from 0.0001 to 1"),
        ({"report": {"baseline": "sgd@" + "9" * 200}}, "RECIPE@BATCH_SIZE"),
        ({"search": {"algorithm": "points", "points": [{"learning_rate": 0}]}}, "log scale"),
        ({"search": {"algorithm": "points", "points": [{"learning_rate": "x"}]}}, "a number is"),
        (
            {"recipes": [{"name": "sgd", "space": {"dropout": {"options": [0.1] * 101}}}]},
            "`options` must hold at most 100 values, but holds 101",
        ),
        (
            {"recipes": [{"name": "sgd", "space": {"dropout": {"options": [[0.1]]}}}]},
            "a value must be a number, text, true or false, but got \\[0.1\\]",
        ),
        (
            {"recipes": [{"name": "sgd", "space": {"dropout": {"low": -1e308, "high": 1e308}}}]},
            "from -1e\\+100 to 1e\\+100",
        ),
        ({"name": ".."}, "must not begin with a dot"),
        ({"name": "größe" * 50}, "at most 230 bytes long, but this one has 350"),
        ({"recipes": [{"name": "大" * 31, "optimizer": "sgd"}]}, "at most 230.*has 279: shorten"),
        ({"recipes": [{"name": "a\x1b[31m", "optimizer": "sgd"}]}, "not hold control characters"),
        ({"workloads": ["digits/mlp?" + "x" * 250]}, "at most 230 bytes"),
    ],
)
def test_bad_sweeps_are_refused(
    sweep_file: SweepFile, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=f"(?s){message}"):
        plan(load_sweep(sweep_file(**changes)))


def test_names_may_be_in_any_script(sweep_file: SweepFile) -> None:
    recipes = [{"name": name, "optimizer": "sgd"} for name in ("大" * 25, "a b/c", "[/red]", "..")]
    planned = plan(load_sweep(sweep_file(name="größe", recipes=recipes, batch_sizes=[4])))
    assert [study.recipe for study in planned.studies] == [recipe["name"] for recipe in recipes]


def test_values_in_messages_are_cut(sweep_file: SweepFile) -> None:
    with pytest.raises(BadInput, match=r"seed: .*\(got \{.*\.\.\.\)") as refused:
        load_sweep(sweep_file(seed={f"key{i}": ["x" * 1000] * 9 for i in range(99)}))
    assert len(str(refused.value).partition("seed")[2]) < 150
    with pytest.raises(BadInput, match="140 more mistakes"):
        load_sweep(sweep_file(goals=[[]] * 150))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nseed: [1\n", "line 3"),
        ("a: 1\na: 2", "line 2.*given twice"),
        ("- 1", "key: value"),
        ("workloads: [digits/mlp?classes=5]", "line 1.*must be in quotes"),
    ],
)
def test_unreadable_yaml_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BadInput, match=message):
        load_sweep(tmp_path / "bad.yaml")


def test_a_rule_fixes_a_metaparameter_at_each_batch_size(sweep_file: SweepFile) -> None:
    space = {"learning_rate": {"rule": "linear", "base": 0.1, "at_batch_size": 64}}
    recipes = [{"name": "linear", "optimizer": "sgd", "space": space}]
    studies = plan(load_sweep(sweep_file(recipes=recipes))).studies
    assert [study.space["learning_rate"] for study in studies] == pytest.approx([0.1, 0.4])


@pytest.mark.dear
def test_the_command_exits_with_2_before_ray_starts(sweep_file: SweepFile, tmp_path: Path) -> None:
    result = orchestrate("sweep", sweep_file(recipes=["sdg"]), "--out", tmp_path / "run")
    assert result.returncode == 2
    assert result.stderr.startswith("error: recipe 'sdg': Unknown optimizer 'sdg'")
    assert not (tmp_path / "run").exists()


@pytest.mark.dear
def test_a_run_folder_that_cannot_be_written_is_refused(sweep_file: SweepFile) -> None:
    result = orchestrate("sweep", sweep_file(), "--out", "/proc/no/run")
    assert result.returncode == 2
    assert "can't be written" in result.stderr


def test_exponents_without_a_dot_are_numbers(sweep_file: SweepFile) -> None:
    path = sweep_file()
    path.write_text(path.read_text() + "evaluate: {spacing: 1e-1}\n")
    assert load_sweep(path).evaluate.spacing == 0.1


def test_settings_on_the_command_line_win(sweep_file: SweepFile) -> None:
    sweep = load_sweep(sweep_file(), ["search.trials=7", "batch_sizes=[1, full]"])
    assert sweep.search.trials == 7
    assert [study.batch_size for study in plan(sweep).studies] == [1, 1400]
    with pytest.raises(BadInput, match="KEY=VALUE"):
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


def test_optimizers_is_another_word_for_recipes(sweep_file: SweepFile) -> None:
    named = load_sweep(sweep_file(recipes=None, optimizers=["sgd", "momentum"]))
    assert [recipe.optimizer for recipe in named.recipes] == ["sgd", "momentum"]


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
    with pytest.raises(BadInput, match="Did you mean 'quickstart'"):
        find_sweep_file("quickstrat")
