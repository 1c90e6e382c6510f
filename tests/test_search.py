import time
from typing import Any

import numpy as np
import pytest
from conftest import TINY, first_trials, refused
from scipy.stats import qmc

from orchestrator.files.yaml_files import read_yaml
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep import Sweep
from orchestrator.records import Choice, Range
from orchestrator.search import DESIGNS, SEARCH_SPACES, grid, known_spaces, load_space, space_from
from orchestrator.search.proposer import Design, halton
from orchestrator.workloads import REGISTRY


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_a_longer_design_begins_with_the_shorter_one(design: Design) -> None:
    assert np.array_equal(design(3, 2, 50)[:20], design(3, 2, 20))
    assert not np.array_equal(design(3, 2, 20), design(4, 2, 20))


@pytest.mark.parametrize("dimensions", [1, 2, 7, 40])
def test_haltons_points_are_those_of_scipy(dimensions: int) -> None:
    for seed in (0, 5, 2**40 + 3):
        theirs = qmc.Halton(dimensions, scramble=True, rng=seed).random(1000)
        assert np.array_equal(halton(seed, dimensions, 1000), theirs)


@pytest.mark.parametrize("name", ["halton", "sobol"])
def test_quasi_random_designs_cover_the_cube_better_than_chance(name: str) -> None:
    random = np.random.default_rng(0).random((64, 2))
    assert qmc.discrepancy(DESIGNS[name](0, 2, 64)) < 0.5 * qmc.discrepancy(random)


def test_every_batch_size_is_searched_with_the_same_points_and_seeds() -> None:
    sweep = Sweep.model_validate({**TINY, "seed": 5, "recipes": ["momentum", "nesterov"]})
    tables = [
        [(trial.index, trial.seed, dict(trial.params)) for trial in first_trials(study, sweep.seed)]
        for study in plan(sweep).studies
    ]
    assert len(tables) == 4
    assert all(table == tables[0] for table in tables)


def test_fixed_values_are_not_searched() -> None:
    space = space_from({"learning_rate": 0.5, "momentum": {"options": [0.9, 0.99]}}, "here")
    assert space == {"learning_rate": 0.5, "momentum": Choice(options=(0.9, 0.99))}
    assert Choice(options=("a", "b", "c")).at(1.0) == "c"


def test_a_grid_names_each_point_once_in_time_linear_in_their_number() -> None:
    space = {"a": Range(low=0, high=1), "b": Range(low=0, high=9, integer=True)}
    began = time.process_time()
    points = grid(space, {"a": 2000, "b": 40})
    assert time.process_time() - began < 5
    assert len(points) == 2000 * 10
    assert points[:2] == ({"a": 0.0, "b": 0}, {"a": 0.0, "b": 1})


@pytest.mark.parametrize("optimizer", known_spaces())
def test_a_space_loads_for_every_workload_and_is_overridden_for_what_there_is(
    optimizer: str,
) -> None:
    overridden = read_yaml(SEARCH_SPACES / f"{optimizer}.yaml").get("workloads", {})
    assert set(overridden) <= {*REGISTRY, *(name.partition("/")[0] for name in REGISTRY)}
    for workload in ["any", *overridden]:
        space = load_space(optimizer, workload)
        assert any(isinstance(entry, Range) for entry in space.values())


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"low": 3, "high": 1}, ("range-order", 3, 1)),
        ({"low": 1}, ("wrong-value", "`high`", None)),
        ({"low": 1, "high": 2, "scale": "lgo"}, ("unknown-name", "'lgo'", "'log'")),
        ({"low": 1, "hihg": 2}, ("unknown-key", "'hihg'", "'high'")),
        ([1, 2], ("wrong-value", [1, 2])),
    ],
)
def test_bad_entries_name_the_place_and_the_remedy(entry: object, said: Any) -> None:
    with refused(*said, "file: learning_rate"):
        space_from({"learning_rate": entry}, "file")
