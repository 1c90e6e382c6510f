"""Steps that were measured elsewhere: `orchestrator.scaling`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, refused

import orchestrator

SIZES = np.array([8, 16, 32, 64, 128, 256, 512, 1024])
SEEDS = [
    (300 * (1 + 100 / size) * 2 ** np.random.default_rng(size).normal(0, 0.1, 5)).round()
    for size in SIZES
]


def test_a_planted_critical_batch_size_is_found_whatever_holds_the_numbers() -> None:
    steps = 300 * (1 + 100 / SIZES)
    for given in (steps, steps.tolist(), pd.Series(steps, index=range(5, 13))):
        found = orchestrator.scaling(SIZES, given, resolution=5).critical_batch_size
        assert found is not None
        assert found.value == pytest.approx(100, rel=0.02)


def test_seeds_are_a_list_for_each_batch_size_or_rows_of_a_table() -> None:
    nested = orchestrator.scaling(SIZES.tolist(), SEEDS, resolution=[5] * 8)
    assert nested.of_medians
    assert nested.contributions is not None
    assert nested.contributions.seeds is not None
    low, high = nested.critical_batch_size.ends  # type: ignore[union-attr]
    assert low < 100 < high
    table = pd.DataFrame({"batch": np.repeat(SIZES, 5), "steps": np.concatenate(SEEDS)})
    shuffled = table.sample(frac=1, random_state=0)
    rows = orchestrator.scaling(shuffled["batch"], shuffled["steps"], resolution=5)
    assert rows.to_json() == nested.to_json()


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_what_never_reached_the_goal_is_no_point(missing: Any) -> None:
    steps = [*SEEDS[:-1], [missing, missing, missing, 400, 410]]
    assert orchestrator.scaling(SIZES, steps).largest == 512
    assert "never reached" in orchestrator.scaling([8, 16], [missing, missing]).verdict


@pytest.mark.parametrize(
    ("sizes", "steps", "resolution"),
    [
        ([], [], 0), ([8], [1, 2], 0), (8, [1], 0), ([8], 1, 0), ("8", [1], 0), ([8], "1", 0),
        ([8.5], [1], 0), ([0], [1], 0), ([float("nan")], [1], 0), (["a"], [1], 0),
        ([8], [[]], 0), ([8], [0], 0), ([8], [-1], 0), ([8], ["x"], 0), ([8], [[1, "x"]], 0),
        ([8], [1], -1), ([8], [1], float("inf")), ([8], [1], [1, 2]), ([8], [1], "x"),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(sizes: Any, steps: Any, resolution: Any) -> None:
    with refused("wrong-value"):
        orchestrator.scaling(sizes, steps, resolution=resolution)


def test_the_example_of_the_page_runs() -> None:
    page = Path(ROOT / "docs" / "api.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["answer"].to_json() == names["same"].to_json()
    assert names["answer"].critical_by_examples.low > 8
