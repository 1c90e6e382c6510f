"""Whatever a sweep file contains, `orchestrate plan` ends with code 0 or 2, soon, in little memory
and without a traceback."""

import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from conftest import TINY, bounded, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli import main
from orchestrator.files.yaml_files import LARGEST_FILE, parse_mapping, write_yaml
from orchestrator.planning.sweep_file import find_sweep_file, load_sweep, validated

SECONDS, MEGABYTES = 60, 500
"""Of processor time, since others may use the machine too."""

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
                    "learning_rate": {
                        "low": 0.1, "high": 1, "scale": "log", "limits": [0.01, 9], "integer": False
                    },
                    "momentum": {"options": [0.5, 0.9]},
                    "weight_decay": {"options": [0.1, 0.2], "when": {"momentum": [0.9]}},
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
        "report": {"baseline": "sgd@4"},
        "repeats": 2,
    },
    "here",
).resolved()  # fmt: skip

NUMBERS = st.one_of(
    st.integers(),
    st.integers(5, 40).map(lambda power: 10**power),
    st.floats(),
    st.sampled_from([0, -1, 1, 1e308, -1e308, 5e-324, 1.0000000000000002, 1.0000001, 10**4000]),
)
TEXTS = st.one_of(
    st.text(max_size=5),
    st.sampled_from(["", "..", "full", "x" * 300, "大" * 31, "9" * 5000, "a:b", ".:x", "x.py:Y"]),
    st.sampled_from(["\0", "\x1b[31m", "\ud800", "[/red]", "2001-99-99", "=", "val/x < 1e999"]),
)
SINGLE = st.one_of(NUMBERS, TEXTS, st.none(), st.booleans())


def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.integers(0, 9), st.none()), inner, max_size=3),
        st.lists(inner, min_size=1, max_size=1).map(lambda values: values * 200),
    )


VALUES = st.one_of(SINGLE, around(SINGLE), around(st.one_of(SINGLE, around(SINGLE))))


def places_in(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the keys that lead to each value."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places_in(value, (*above, key))


def changed(changes: dict[tuple[Any, ...], Any]) -> str:
    """Returns the valid sweep with other values at some places, the innermost first."""
    document = copy.deepcopy(VALID)
    for (*path, last), value in sorted(changes.items(), key=lambda change: -len(change[0])):
        place = document
        for key in path:
            place = place[key]
        place[last] = value
    return yaml.safe_dump(document)


PIECES = [
    *"[]{}:-,?'\"|>%@#=~&!<", "---", "...", "&a ", "*a", "<<: ", "!!int ", "!!set ", "0b_", "1e999",
    ".nan", "1:1:1", "2001-01-01", "name", "recipes", "[digits/mlp]", "\\ud800", " ", "\n", "\n  ",
    "\t", "\0", "[" * 2000, "9" * 5000,
]  # fmt: skip


def answered(file: Path, text: str) -> int:
    """Runs the command in this process and returns its exit code."""
    file.write_text(text, errors="surrogatepass")
    arguments = ["orchestrate", "plan", str(file)]
    with (
        bounded(seconds=SECONDS, megabytes=MEGABYTES),
        patch.object(sys, "argv", arguments),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "sweep.yaml"


@pytest.mark.slow
@given(changes=st.dictionaries(st.sampled_from([*places_in(VALID)]), VALUES, max_size=3))
@settings(derandomize=True, max_examples=80)
def test_a_sweep_with_odd_values(file: Path, changes: dict[tuple[Any, ...], Any]) -> None:
    code = answered(file, changed(changes))
    assert code in ((0, 2) if changes else (0,))
    if code == 0:
        sweep = load_sweep(file)
        kept = parse_mapping(write_yaml(sweep.resolved()), "a run")
        assert validated(kept, "a run") == sweep


@pytest.mark.parametrize("text", ["1e-3", "+1E5", "1.e3", "1.5", "=", "2001-01-01", "no", "0x1"])
def test_texts_like_numbers_stay_texts(text: str) -> None:
    assert parse_mapping(write_yaml({text: [text]}), "a run") == {text: [text]}


@pytest.mark.dear
@given(pieces=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40))
@settings(derandomize=True, max_examples=60)
def test_text_that_may_be_no_yaml(file: Path, pieces: list[str]) -> None:
    assert answered(file, "".join(pieces)) == 2


def repeated(levels: int) -> str:
    """Returns lists that contain each other by aliases, nine times at each level."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
def test_what_would_exhaust_a_reader_is_refused(
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
