"""Whatever a sweep file contains, it is planned or refused, soon and in little memory."""

import copy
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, bounded, refused

from orchestrator.files.yaml_files import LARGEST_FILE, parse_mapping, write_yaml
from orchestrator.planning.studies import plan
from orchestrator.planning.sweep_file import find_sweep_file, load_sweep, validated
from orchestrator.records import BadInput

VALID = validated(
    {
        **TINY,
        "batch_sizes": {"from": 4, "to": 64, "factor": 4},
        "recipes": [
            "sgd",
            {
                "name": "all",
                "optimizer": "momentum",
                "space": {
                    "learning_rate": {"low": 0.1, "high": 1, "scale": "log", "integer": False},
                    "momentum": {"options": [0.5, 0.9]},
                    "weight_decay": {"options": [0.1, 0.2]},
                },
                "schedule": {
                    "decay": "cosine",
                    "warmup_steps": {"low": 0, "high": 5},
                    "end_factor": {"rule": "linear", "base": 0.1, "at_batch_size": 4},
                },
                "search": {"algorithm": "grid", "grid": {"learning_rate": 3}},
                "budget": {"epochs": 1, "steps": 7},
            },
        ],
        "report": {"price_per_device_hour": 4},
        "repeats": 2,
    },
    "here",
).resolved()  # fmt: skip


def places_in(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the keys that lead to each value."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places_in(value, (*above, key))


ODD: list[Any] = [
    None, True, -1, 0, 10**40, 5e-324, 1e308, math.nan, math.inf,
    "", "\0", "x" * 300, "9" * 5000, "a:b", ".:x", "x.py:Y", "val/x < 1e999",
    [], ["x"] * 200, {}, {"": None}, {"learning_rate": ["x"]},
]  # fmt: skip


@pytest.mark.dear
def test_odd_values_in_any_place() -> None:
    accepted = []
    with bounded(seconds=60):
        for *path, last in places_in(VALID):
            for odd in ODD:
                document = copy.deepcopy(VALID)
                place = document
                for key in path:
                    place = place[key]
                place[last] = odd
                with suppress(BadInput):
                    accepted.append(validated(document, "here"))
        for sweep in accepted[::10]:  # planning takes longer
            try:
                plan(sweep)
            except BadInput:
                continue
            kept = write_yaml(sweep.resolved())
            again = validated(parse_mapping(kept, "a run"), "a run")
            assert write_yaml(again.resolved()) == kept


def test_text_comes_back_as_it_was() -> None:
    texts = ["a\rb\n", "größe", "1e5", "null", " - x: 'y'"]
    assert parse_mapping(write_yaml({"kept": texts}), "a run") == {"kept": texts}


def repeated(levels: int) -> str:
    """Returns lists that contain each other by aliases, nine times at each level."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nseed: [1\n", ("not-yaml", "line 3")),
        ("a: 1\na: 2", ("not-yaml", "line 2", "'a'")),
        ("- 1", ("wrong-value", "[1]")),
        ("workloads: [digits/mlp?classes=5]", ("not-yaml", "line 1", "`?`")),
        (repeated(8), ("not-yaml", "line 5", "50,000 values")),
        ("a: &a {k: 1}\n" + "b: {<<: [" + "*a, " * 50_000 + "]}", ("not-yaml", "50,000 values")),
        ("a: &a [*a]", ("not-yaml", "line 1", "*a")),
        ("[" * 5000, ("not-yaml", "line 1", "50 levels")),
        ("? [a, b]\n: 1", ("not-yaml", "line 1", "key", "text")),
        ("seed: " + "9" * 5000, ("not-yaml", "100 characters", "5,000")),
        ("seed: 1" + ":1" * 5000, ("not-yaml", "100 characters", "10,001")),
        ("seed: 0b_", ("not-yaml", "line 1", "'0b_'", "number")),
        ("seed: !!float x", ("not-yaml", "line 1", "tags")),
        ('name: "\\ud800"', ("not-yaml", "line 1", "surrogate")),
        ("name: \0", ("not-yaml", "#x0000")),
        ("a: *" + "x" * 10_000, ("not-yaml", "line 1", "alias")),
        ("#" * (LARGEST_FILE + 1), ("too-large", "1,048,576")),
        ("name: größe".encode("utf-16"), ("unreadable", "utf-8")),
        ("seed: [" + "x, " * 10_000 + "]", ("wrong-value", "seed")),
    ],
)
def test_unreadable_files_and_those_that_would_exhaust_a_reader_are_refused(
    text: str | bytes, said: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(text if isinstance(text, bytes) else text.encode())
    with refused(*said, "x") as refusal:
        load_sweep(Path("x"), ["name=a", "workloads=[a]", "recipes=[a]", "batch_sizes=[1]"])
    assert len(str(refusal.value)) < (150 if said[0] == "wrong-value" else 400)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with refused("not-a-file", path):
            load_sweep(path)
    with refused("unknown-name", "quickstart"):
        find_sweep_file("x" * 300 + ".yaml")
