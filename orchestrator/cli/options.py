"""Options, exit codes and JSON output, which the commands share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.records import CONTROLS, BadInput

DONE, FAILED, BAD_INPUT, GOAL_UNREACHED, DIFFER, TO_GO_ON, INTERRUPTED = 0, 1, 2, 3, 4, 75, 130

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Folder of a run, or a bucket: s3://BUCKET/FOLDER.")
]
SweepArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|NAME]",
        help="Sweep file, or the name of a sweep of the project. Default: the quickstart.",
    ),
]
OutOption = Annotated[
    str | None, typer.Option(help="Folder of the run, or s3://BUCKET/FOLDER. Default: runs/NAME.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
GoalOption = Annotated[
    list[str] | None,
    typer.Option(
        "--goal",
        metavar="GOAL",
        help="Goal: METRIC<VALUE or METRIC>VALUE. A prefix limits it to the workloads that match a "
        "pattern: 'mnist/*: val/error<0.02'. Repeatable. Default: the goals of the sweep.",
    ),
]
MaximiseOption = Annotated[
    bool | None,
    typer.Option(
        "--maximise/--minimise",
        help="Whether the largest or the smallest value is best. Default: as in the goals, "
        "else the smallest.",
    ),
]
PriceOption = Annotated[
    float | None,
    typer.Option(
        "--price",
        min=0,
        help="Price of one device-hour, in any currency. Default: the sweep file's, or that of a "
        "cluster file.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Value for a key of the file, such as search.trials=50. Repeatable.",
    ),
]
ParamsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Value of a metaparameter: of the optimizer, of a schedule (decay=cosine, "
        "warmup_epochs=2), or one of layerwise_ratio, label_smoothing, gradient_clip, dropout, "
        "ema_decay, precision ... `orchestrate spaces` lists all. Repeatable. Default: the "
        "middle of its range.",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Exact number of steps to train, also past the goal. Default: until the goal or the "
        "budget.",
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**63 - 1,
        help="Seed of the trial; `orchestrate frontier --json` prints it for a sweep's trial.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(envvar="ORCHESTRATE_DATA", help="Folder that has one folder per data set."),
]


def _take_part(address: str | None) -> str | None:
    """Lends this node, if it is one of several of a Slurm job and not the first, and then ends."""
    if address == "slurm":
        from orchestrator.cluster.slurm import take_part

        if not take_part():
            raise typer.Exit
    return address


AddressOption = Annotated[
    str | None,
    typer.Option(
        callback=_take_part,
        help="Address of a running Ray cluster: `auto` or HOST:PORT; or `slurm`, for the nodes on "
        "which `srun` has started this command. Default: $RAY_ADDRESS; if it is not set, Ray is "
        "started on this machine.",
    ),
]
ClusterOption = Annotated[
    Path | None,
    typer.Option(
        "--cluster", metavar="FILE", help="Work on the cluster that `ray up FILE` has started."
    ),
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Start a sweep of any size without asking.")
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="TRACKER",
        help="Report each trial to mlflow, tensorboard or wandb as well. Repeatable.",
    ),
]
RayOption = Annotated[
    bool | None,
    typer.Option(
        "--ray/--no-ray",
        help="--no-ray trains one trial after another in this process. Files and answers are the "
        "same; an exception stops the command where it is raised. Default: without Ray where it "
        "can't help, that is, for trials that together take seconds, or on one core.",
    ),
]


def refuse_both(these: Mapping[str, object], those: Mapping[str, object]) -> None:
    """Raises `BadInput` if an option of `these` and one of `those` are given, by name -> value."""
    given = [[name for name, value in options.items() if value] for options in (these, those)]
    for one, other in zip(*given, strict=False):
        raise BadInput(f"Give --{one} or --{other}, not both.", code="not-together")


def print_json(document: Any) -> None:
    """Prints one JSON document to standard output; numbers that are not finite become null."""
    from orchestrator.results.purpose import finite

    text = json.dumps(finite(document), indent=1, ensure_ascii=False)
    # JSON does not escape some control characters that a terminal obeys, or surrogates that can't
    # be encoded.
    print(CONTROLS.sub(lambda at: at[0] if at[0] == "\n" else f"\\u{ord(at[0]):04x}", text))
