"""Bad input is refused before anything starts. The message names the key, the value and what is
accepted."""

import math
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from conftest import TINY, called, made, refused

from orchestrator.planning import studies
from orchestrator.planning.growth import refuse_incomparable
from orchestrator.planning.parts import Part
from orchestrator.planning.schema import schema_of
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Recipe, Sweep
from orchestrator.planning.sweep_file import SWEEPS, find_sweep_file, load_sweep, validated
from orchestrator.records import Role, SearchPlan, Study, settings_of

SweepFile = Callable[..., Path]


def space(**entries: Any) -> dict[str, Any]:
    return {"recipes": [{"name": "sgd", "space": entries}]}


def schedule(**entries: Any) -> dict[str, Any]:
    return {"recipes": [{"name": "sgd", "schedule": entries}]}


def search(algorithm: str, **keys: Any) -> dict[str, Any]:
    return {"search": {"algorithm": algorithm, **keys}}


def ladder(low: object, high: object, factor: float) -> dict[str, Any]:
    return {"batch_sizes": {"from": low, "to": high, "factor": factor}}


def program(**keys: Any) -> dict[str, Any]:
    return {"workloads": ["digits/mlp", {"name": "p", "program": "a {learning_rate}", **keys}]}


def named(name: str) -> dict[str, Any]:
    return {"recipes": [{"name": name, "optimizer": "sgd"}]}


def momentum(**entries: Any) -> dict[str, Any]:
    return {"recipes": [{"name": "momentum", "space": entries}]}


def cooled(cooldown: Any, **changes: Any) -> dict[str, Any]:
    return {**schedule(cooldown=cooldown), **changes}


def growing(*stages: dict[str, Any], **keys: Any) -> dict[str, Any]:
    stages_of_8 = [{"batch_size": 8, **stage} for stage in stages]
    return {"recipes": [{"name": "sgd", "batch_schedule": stages_of_8, **keys}]}


def more(**entry: Any) -> dict[str, Any]:
    return {"repeats": 2, "search": {"trials": 3, "max_launches": 8}, "more": [entry]}


def quadratic(options: str, **changes: Any) -> dict[str, Any]:
    return {"workloads": [f"noisy_quadratic?{options}"], "goals": [], "batch_sizes": [4], **changes}


SGD, BILLION = "recipe 'sgd'", 1000000000
RECIPES = [{"name": f"r{i}", "optimizer": "sgd"} for i in range(201)]
DECAYING = {"name": "sgd", "schedule": {"decay": "linear"}}
ONLY_A_RATE = {"learning_rate": {"low": 0.1, "high": 1}}
GRID = {"algorithm": "grid", "grid": {"learning_rate": 3}}
AXES = {"learning_rate": 9999, "momentum": 9999}
OFTEN = {"evaluate": {"spacing": 0, "min_examples": 1}}
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "bad-input": [
        (more(batch_sizes=[65], trials=6), "more.0.batch_sizes", 65, "64, 256"),
        (more(batch_sizes=[64], trials=2), "more.0.trials", 3, 2),
        (more(batch_sizes=[64], repeats=1), "more.0.repeats", 2, 1),
        (more(batch_sizes=[64], trials=9), "more.0", "max_launches", 8),
    ],
    "batch-too-large": [
        ({"batch_sizes": [5000]}, "batch_sizes", 5000, 1400, "digits/mlp"),
        (growing({}, {"batch_size": 2000, "steps": 5}), "batch_schedule", "2,000", "1,400"),
    ],
    "empty": [({"batch_sizes": []}, "batch_sizes")],
    "endless-data": [
        (quadratic("", **schedule(warmup_epochs=1)), "'warmup_epochs'", "'warmup_steps'"),
        (quadratic("", budget={"epochs": 2}), "budget", "`epochs`", "noisy_quadratic?"),
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
    "missing-value": [
        (search("points", points=[{}]), SGD, "points", "learning_rate"),
        (momentum(only=ONLY_A_RATE), "recipe 'momentum'", "for momentum"),
    ],
    "no-effect": [
        (growing({}, {"steps": 5, "learning_rate": 2}, optimizer="a2grad", space={}), "a2grad"),
        (cooled({"power": 2}), "power", "linear"),
        (search("halton", points=[{"learning_rate": 1}]), "search", "`points`"),
        ({"resources": {"max_devices": 2}}, "resources", "`examples_per_device`"),
        ({"resources": {"examples_per_device": 9}}, "resources", "`max_devices`"),
        (search("halton", generation=4), "search", "`generation`", "halton"),
        (search("points", points=[{"learning_rate": 1}], trials=4), SGD, "`trials`", "points"),
        (search("grid", max_launches=40), SGD, "`max_launches`", "grid"),
    ],
    "no-such-budget": [
        (cooled({}, budget={"steps": 1}), 1, 2),
        (growing({}, {"batch_size": 16, "steps": 9}, budget={"steps": 9}), SGD, 16, 9, "budget"),
    ],
    "not-importable": [
        ({"workloads": ["no.such:Thing"]}, "'no.such:Thing'"),
        ({"workloads": ["no_such.py:Thing"]}, "'no_such.py:Thing'"),
    ],
    "not-together": [
        ({"repeats": {"count": 4, "of": 2}, "repeat_best": 3}, "`repeat_best`", "`repeats.of`"),
        ({"repeats": {"count": 1, "of": 5}}, "repeats", "best 5", 64),
        ({"stop": {"at_goal": False}, "budget": {"steps": 9, "inherit": 2}}, "inherit", "at_goal"),
        ({"stop": {"at_goal": False, "dominated": True}}, "stop", "`dominated`"),
        ({"branch": {}}, "branch", 2),
        (momentum(only=ONLY_A_RATE, momentum=0.9), "recipe 'momentum'", "`only`"),
        (momentum(only=0.1), "recipe 'momentum'", "`only`"),
        ({"recipes": [{"name": "sgd", "schedule": {"cooldown": {}, "decay": "cosine"}}]}, "cosine"),
        (cooled({"fraction": 0.2, "steps": 9}), "fraction"),
        (cooled({}, goals=["val/error < 0.2 for 2 measurements"]), "for 2"),
        (cooled({}, goals=["val/error < 0.2", "val/loss < 1"]), "cooldown"),
        (growing({}, {"steps": 9}, schedule={"cooldown": {}}), "cooldown"),
        (growing({}, {"batch_size": 16}), "batch_schedule", 16, "neither"),
        (growing({}, {"batch_size": 16, "steps": 5, "examples": 99}), "batch_schedule", 16, "both"),
        ({"resources": {"gpus_per_device": 0.5, "max_devices": 2}}, "resources", "max_devices 1"),
    ],
    "other-name": [(space(lr=1), SGD, "'lr'", "'learning_rate'")],
    "range-order": [
        (ladder(99, 9, 2), "batch_sizes", 99, 9),
        ({"search": {"trials": 20, "max_launches": 10}}, "search", "`max_launches`", "`trials`"),
    ],
    "stage-order": [
        (growing({"steps": 5}), "batch_schedule", 0),
        (growing({}, {"steps": 9, "learning_rate": 2}, {"steps": 9}), 8, "72 examples", "at 72"),
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
        (cooled({"length": 1}), "length"),
        ({"recipez": ["sgd"]}, "'recipez'", "'recipes'"),
        ({"scal": {}}, "'scal'", "'scale'"),
        (program(evry=5), "'workloads.1.evry'", "'workloads.1.every'"),
        ({"search": {"trails": 3}}, "'search.trails'", "'search.trials'"),
        ({"trials": 3}, "'trials'", "'search.trials'"),
        ({"repeats": {"count": 3, "off": 2}}, "'repeats.off'", "'repeats.of'"),
        ({"precision": "bfloat16"}, "precision:", "space: {precision: 'bfloat16'}"),
        ({"recipes": [{"name": "sgd", "lr": 0.1}]}, "recipes.0.lr", "space: {learning_rate: 0.1}"),
        ({"recipes": [{"name": "sgd", "warmup_steps": 9}]}, "schedule: {warmup_steps: 9}"),
    ],
    "unknown-name": [
        ({"workloads": ["digits/mpl"]}, "'digits/mpl'", "'digits/mlp'"),
        ({"recipes": ["momentun"]}, "'momentun'", "'momentum'"),
        ({"goals": ["val/err < 0.1"]}, "'val/err'", "'val/error'"),
        ({"goals": ["val/ema_error < 0.1"]}, SGD, "`ema_decay`", "'val/ema_error'"),
        (schedule(decya="cosine"), "'decya'", "'decay'"),
        (space(precision={"options": ["float32", "f8"]}), SGD, "precision 'f8'"),
        (search("haltom"), "'haltom'", "'halton'"),
        (search("points", points=[{"lr": 1}]), SGD, "'lr'"),
        (search("grid", grid={"lr": 3}), f"{SGD}: grid", "'lr'"),
        (quadratic("dd=3"), "'noisy_quadratic'", "'dd'", "'d'"),
        (momentum(only={"learning_rates": 1}), "recipe 'momentum'", "'learning_rates'"),
        (cooled({"shape": "linaer"}), "linaer", "linear"),
        (more(recipes=["sdg"], batch_sizes=[64], trials=6), "more.0 'sdg'", "'sgd'"),
        (more(workloads=["x"], batch_sizes=[64], trials=6), "more.0 'x'"),
    ],
    "wrong-name": [
        ({"name": ".."}, "name", "'..'"),
        *((named(name), "recipes.0.name") for name in ("a\x1b[31m", "=1+1", "+x", "-x", "@x")),
    ],
    "wrong-value": [
        ({"batch_sizes": [8, 1.5]}, "batch_sizes.1:", "whole number", 1.5),
        ({"batch_sizes": [True]}, "batch_sizes.0", "whole number", True),
        ({"repeats": True}, "repeats", "a number", True),
        (quadratic("d=99999999"), "`d", "10,000,000", 99999999),
        (search("points", points=[{"learning_rate": 0}]), "points: learning_rate", "log scale", 0),
        (search("points", points=[{"learning_rate": "x"}]), "points: learning_rate", "'x'"),
        ({"batch_sizes": [10**10]}, "batch_sizes.0", "1,000,000,000", 10**10),
        (ladder(1, "ful", 2), "batch_sizes.to", "`full`", "'ful'"),
        ({"batch_sizes": "full"}, "batch_sizes", "'full'"),
        ({"goals": ["val/error"]}, "goals.0", "'val/error'"),
        (schedule(warmup_fraction={"low": 0, "high": 2}), SGD, "'warmup_fraction'", 1, 2),
        (space(learning_rate="abc"), "'learning_rate'", "'abc'"),
        (momentum(momentum=2), "'momentum'", 0, 1, 2),
        (space(dropout={"options": 0.1}), "`options`", 0.1),
        (space(dropout={"options": [[0.1]]}), "dropout", "[0.1]"),
        ({"checkpoint": {"every_seconds": math.inf}}, "checkpoint.every_seconds", BILLION, "inf"),
        ({"workloads": [":Blobs"]}, "MODULE:CLASS", "':Blobs'"),
        ({"recipes": RECIPES}, "recipes", "200 items", 201),
        (cooled(0.2), "cooldown: write it in braces", 0.2),
        (program(every=0), "workloads.1.every", 0),
        (cooled({}, goals=["batch/loss < 1"]), "batch/loss"),
        (more(batch_sizes=[64]), "more.0", "`trials`", "`repeats`"),
        (growing({}, {"batch_size": 4, "steps": 5}), "batch_schedule", 8, 4),
        (growing({}, {"steps": 5, "learning_rate": -1}), "batch_schedule.1.learning_rate", -1),
        (growing({}, {"steps": 5, "learning_rate": "cubic"}), "batch_schedule", "'cubic'"),
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
    with refused("wrong-value", "140 more"):
        load_sweep(sweep_file(goals=[[]] * 150))


def test_a_run_folder_that_cannot_be_written_is_refused(sweep_file: SweepFile) -> None:
    with refused("unwritable", "/proc/no/run"):
        called("sweep", sweep_file(), "--out", "/proc/no/run")
    with refused("wrong-place", "empty"):  # a variable of the shell that is not set
        called("sweep", sweep_file(), "--out", "")


def test_exponents_without_a_dot_are_numbers(sweep_file: SweepFile) -> None:
    path = sweep_file()
    path.write_text(path.read_text() + "evaluate: {spacing: 1e-1}\n")
    assert load_sweep(path).evaluate.spacing == 0.1


def test_settings_on_the_command_line_win(sweep_file: SweepFile) -> None:
    repeats = ["repeats={count: 4}", "repeat_best=3"]
    sweep = load_sweep(sweep_file(), ["search.trials=7", "batch_sizes=[1, full]", *repeats])
    assert (sweep.search.trials, sweep.repeats, sweep.repeat_best) == (7, 4, 3)
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
    only = {"recipes": [{"name": "sgd", "budget": {"inherit": 2}}]}
    inheriting = plan(load_sweep(sweep_file(budget={"steps": 77}, **only))).studies
    assert {(study.budget_steps, study.inherit) for study in inheriting} == {(77, 2)}


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


@pytest.mark.parametrize(
    "listed", [{"algorithm": "points", "points": [{"learning_rate": 0.1}] * 3}, GRID]
)
def test_a_recipe_with_nothing_to_search_heeds_no_points_of_others(
    sweep_file: SweepFile, listed: dict[str, Any]
) -> None:
    fixed = {"name": "fixed", "optimizer": "sgd", "space": {"learning_rate": 0.2}}
    path = sweep_file(recipes=["sgd", fixed], search=listed, batch_sizes=[64])
    studies = plan(load_sweep(path)).studies
    assert [study.trials for study in studies] == [3, 1]
    assert studies[1].search.points == ({"learning_rate": 0.2},)


EXAMPLES: dict[str, Any] = {
    "workloads": ["digits/cnn"],
    "recipes.space": {"learning_rate": 0.1},
    "recipes.batch_schedule": [{"batch_size": 8}, {"steps": 5, "batch_size": 16}],
    "evaluate.min_examples": 500,
    "evaluate.spacing": 0.5,
    "evaluate.noise_scale": True,
    "search.grid": {"learning_rate": 2},
    "search.points": [{"learning_rate": 0.3}],
}
"""Values of keys whose examples do not fit the tiny sweep, or say the same as their default."""

BESIDES: dict[str, dict[str, Any]] = {
    "search.grid": {"algorithm": "grid"},
    "search.points": {"algorithm": "points", "points": [{"learning_rate": 0.1}]},
    "search.generation": {"algorithm": "tpe"},
}
"""Key -> the search of a sweep in which it has a meaning."""


def keys_of(kind: type[Part], place: str = "", whole: Role | None = None) -> Iterator[Any]:
    """The keys of sweep files: where they lie, their role, and a value."""
    for name, (key, own) in settings_of(kind).items():
        field, role = kind.model_fields[name], own or whole
        inner = [each for each in (field.annotation, *get_args(field.annotation)) if is_part(each)]
        if name in ("branch", "programs", "scales"):  # a program is an entry of `workloads`
            continue
        if inner and kind is not Recipe and name not in ("batch_sizes", "more"):
            yield from keys_of(inner[0], f"{place}{key}.", role)
        else:
            yield f"{place}{key}", role, EXAMPLES.get(place + key, (field.examples or [None])[0])


def is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)


@pytest.mark.parametrize(("key", "role", "value"), [*keys_of(Sweep)])
def test_a_key_acts_through_the_studies_alone_or_not_on_them(
    key: str, role: Role, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "rehearse_all", lambda *_: ())
    document = deepcopy(TINY) | {"recipes": [{"name": "sgd", "optimizer": "sgd"}]}
    document["resources"] = {"examples_per_device": 64, "max_devices": 1}
    document["search"] = BESIDES.get(key, {"trials": 3})
    before = validated(document, "before")
    *path, last = key.split(".")
    part: Any = document
    for name in path:
        part = part.setdefault(name, {})
        part = part[0] if isinstance(part, list) else part
    part[last] = value
    after = validated(document, "after")
    assert before != after
    acts = studies.plan(before).studies != studies.plan(after).studies
    assert acts == (role is Role.STUDIES)


def test_every_setting_has_a_role() -> None:
    """Or lies in a part whose settings have roles."""
    (branches, _) = get_args(Sweep.model_fields["branch"].annotation)
    for kind in (Study, SearchPlan, Sweep, Recipe, branches):
        without = {name for name, (_, role) in settings_of(kind).items() if role is None}
        assert without == {Study: {"search"}, Sweep: {"branch"}}.get(kind, set())


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
    run, _ = made(tmp_path / "run", load_sweep(file))
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
