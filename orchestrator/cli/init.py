"""The command `init`: it writes files to start from."""

from __future__ import annotations

from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.terminal import say
from orchestrator.records import BadInput, wrong_value

STARTERS = Path(__file__).parent.parent / "starters"

KINDS = {
    "classification": {"OPTIMIZER": "sgd", "RATE": "0.5"},
    "regression": {"OPTIMIZER": "adam", "RATE": "0.01"},
    "language": {"OPTIMIZER": "adam", "RATE": "0.01"},
}
LONGEST = 100

METRICS = {"regression": "val/square"}


def init(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the files.")] = "mine",
    kind: Annotated[
        Literal["classification", "regression", "language"],
        typer.Option(help="Kind of task that the workload trains for."),
    ] = "classification",
) -> None:
    """Write a workload, a sweep file and a test to start from. They train as they are written."""
    from orchestrator.planning.schema import SCHEMA_FILES
    from orchestrator.planning.sweep_file import SWEEPS

    given, name = name, name.replace("-", "_")
    if not name.isidentifier() or len(name) > LONGEST:
        rule = f"up to {LONGEST} letters, digits and underscores, with no digit first"
        raise wrong_value("NAME", rule, given)
    if iskeyword(name) or (find_spec(name) and not Path(f"{name}.py").exists()):
        raise BadInput(
            f"NAME must be no word or module of Python, which {name}.py would hide, but is "
            f"{given!r}. Give another one.",
            code="exists",
        )
    files = {
        Path(f"{name}.py"): kind,
        Path(f"{name}.yaml"): "sweep",
        Path(f"test_{name}.py"): "test",
    }
    for file in files:
        if file.exists():
            raise BadInput(f"{file} exists already. Give another NAME.", code="exists")
    made = "".join(word.capitalize() for word in name.split("_"))
    if not made.isidentifier() or iskeyword(made):
        made = "Mine"
    words = {
        "NAME": name, "CLASS": made, "METRIC": METRICS.get(kind, "val/loss"), **KINDS[kind],
    }  # fmt: skip
    for file, starter in files.items():
        text = (STARTERS / f"{starter}.txt").read_text()
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        file.write_text(text)
    schema = SCHEMA_FILES["sweep"]  # the first line of the sweep file names it
    Path(schema).write_bytes((SWEEPS / schema).read_bytes())
    say(
        f"Written: {', '.join([*map(str, files), schema])}. Next:\n"
        f"  orchestrate trial {name}.py:{made} --optimizer {words['OPTIMIZER']} --batch-size 32 "
        f"--set learning_rate={words['RATE']}\n"
        f"  orchestrate sweep {name}.yaml"
    )
