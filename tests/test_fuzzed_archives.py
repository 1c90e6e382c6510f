"""Archives in which whole studies are ruined, by seed: `--archives 300` tries more of them."""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import bounded
from test_hostile_archives import GOAL, Tree, answer, put, valid

__all__ = ["valid"]

pytestmark = pytest.mark.dear

Ruin = Callable[[list[str], random.Random], list[str]]
"""Changes the lines of a curve after the first."""

RUINS: dict[str, Ruin] = {
    "no rows": lambda rows, chance: [],
    "one row": lambda rows, chance: rows[:1],
    "no numbers": lambda rows, chance: [",".join("x" for _ in row.split(",")) for row in rows],
    "infinite": lambda rows, chance: [f"{row.split(',')[0]},inf,-inf" for row in rows],
    "not a number": lambda rows, chance: [f"{row.split(',')[0]},nan,nan" for row in rows],
    "huge values": lambda rows, chance: [f"{row.split(',')[0]},1e308,-1e308" for row in rows],
    "huge steps": lambda rows, chance: [f"{10 ** chance.randint(9, 30)},0.01,0.01" for _ in rows],
    "negative steps": lambda rows, chance: [f"-{row}" for row in rows],
    "the same step": lambda rows, chance: rows[:1] * 5,
    "any order": lambda rows, chance: chance.sample(rows, len(rows)),
    "torn": lambda rows, chance: [row[: chance.randint(0, len(row))] for row in rows],
    "at once": lambda rows, chance: ["0,0.0,0.0"],
}

STATUSES = ["COMPLETE", "INFEASIBLE", "INCOMPLETE", "", None, 7]


def ruined(tree: Tree, chance: random.Random) -> Tree:
    found = dict(tree)
    for study in sorted({name.rsplit("/", 2)[0] for name in tree if name.endswith(".csv")}):
        if chance.random() < 0.3:
            continue
        how, spared = chance.choice([*RUINS]), chance.choice([0.0, 0.0, 0.5])
        status = chance.choice(STATUSES) if chance.random() < 0.3 else "COMPLETE"
        for name in [name for name in tree if name.startswith(f"{study}/")]:
            content = tree[name]
            assert isinstance(content, bytes)
            if chance.random() < spared:
                continue
            if name.endswith(".csv"):
                head, *rows = content.decode().splitlines()
                found[name] = "\n".join([head, *RUINS[how](rows, chance), ""]).encode()
            elif name.endswith("metadata.json"):
                found[name] = json.dumps(json.loads(content) | {"status": status}).encode()
            if chance.random() < 0.02:
                del found[name]
    return found


def test_each_command_answers(valid: Tree, pytestconfig: pytest.Config) -> None:
    questions = (["status"], ["frontier"], ["frontier", GOAL], ["report"], ["report", GOAL])
    for seed in range(pytestconfig.getoption("archives")):
        tree = ruined(valid, random.Random(seed))
        with bounded(), tempfile.TemporaryDirectory() as folder:
            archive, run = Path(folder) / "archive", Path(folder) / "run"
            put(tree, archive)
            code, said = answer("import", archive, "--out", run)
            assert code in (0, 2), (seed, said)
            for command, *options in questions if code == 0 else ():
                code, said = answer(command, run, *options)
                assert code in (0, 2, 3), (seed, command, said)
                assert "made a mistake" not in said, (seed, command, said)
