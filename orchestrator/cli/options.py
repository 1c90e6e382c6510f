"""What the commands share: options, exit codes and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.records import CONTROLS

DONE, FAILED, BAD_INPUT, GOAL_UNREACHED, INTERRUPTED = 0, 1, 2, 3, 130

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The folder of a run, or s3://BUCKET/FOLDER and such.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print as CSV.")]
GoalOption = Annotated[
    list[str] | None,
    typer.Option(
        "--goal",
        help="METRIC<VALUE, or WORKLOADS: METRIC<VALUE with a pattern such as 'mnist/*'; may be "
        "given again. Default: the sweep's.",
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="Only the first so many that count, of each study."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="May be given again.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(envvar="ORCHESTRATE_DATA", help="The folder that has a folder per data set."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="A running Ray cluster: `auto` or HOST:PORT. Default: RAY_ADDRESS, or none."),
]

ClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster", metavar="FILE", help="On the cluster that `ray up FILE` has started."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask before much is started.")]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Tell mlflow, tensorboard or wandb of each trial too; may be given again.",
    ),
]
RayOption = Annotated[
    bool,
    typer.Option(
        "--ray/--no-ray",
        help="Without Ray, train one trial after another in this process: same files, same "
        "answers, errors as they are raised.",
    ),
]


def print_json(document: Any) -> None:
    """One JSON document on standard output; what isn't a finite number is null."""
    text = json.dumps(finite(document), indent=1, ensure_ascii=False)
    # JSON leaves some that a terminal obeys, or that can't be encoded, as they are.
    print(CONTROLS.sub(lambda found: found[0] if found[0] == "\n" else _escaped(found[0]), text))


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value
