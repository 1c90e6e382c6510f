"""The `orchestrate` command: it parses its arguments, calls one stage and prints the answer.

A module that is slow to import is imported inside the command that needs it.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from orchestrator.cli import (
    archives,
    compare,
    forecast,
    init,
    planning,
    reading,
    registries,
    report,
    runs,
    scale,
    terminal,
    trial,
)
from orchestrator.cli.options import BAD_INPUT, DONE, FAILED, INTERRUPTED, TO_GO_ON
from orchestrator.records import BadInput, RankFailed, SweepFailed, frames_of_user
from orchestrator.sweeping.interrupts import heed_termination, to_go_on

COLLECT_AFTER = 50_000
"""Number of new objects after which Python looks for garbage. At its default it does so 600 times
while Torch and Ray are imported, which takes a fifth of that time."""


def _exit_with(code: int | None, **options: object) -> None:
    """A command that returns nothing has done what it was asked for."""
    raise typer.Exit(code or DONE)


app = typer.Typer(
    result_callback=_exit_with,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure how far the batch size of a training can scale: plan the experiment, run it and "
    "read its results.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("orchestrate-batch-size"))
        raise typer.Exit


@app.callback()
def _for_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print answers and errors only, no progress.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the full traceback when code raises an error.")
    ] = False,
) -> None:
    terminal.console.quiet = quiet
    terminal.debugging = debug


for command in (
    init.init,
    runs.sweep,
    runs.resume,
    runs.stop,
    planning.plan,
    reading.status,
    reading.frontier,
    reading.best,
    scale.scale,
    report.report,
    compare.compare,
    reading.advise,
    trial.trial,
    forecast.forecast,
    runs.branch,
    registries.workloads,
    registries.spaces,
    archives.export,
):
    app.command()(command)
app.command("import")(archives.import_)
app.add_typer(registries.data_app, name="data")


def main() -> None:
    """Runs the command of the process's arguments; the console script `orchestrate` calls this."""
    heed_termination()
    if sys.stderr is not None:  # it may be closed
        sys.stderr = terminal.Unheard(sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an old encoding may lack a sign of an answer
    gc.set_threshold(COLLECT_AFTER)
    try:
        _run()
    except (BadInput, SweepFailed) as error:
        terminal.complain(error)
        sys.exit(BAD_INPUT if isinstance(error, BadInput) else FAILED)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer turns a KeyboardInterrupt and an EOFError into a SystemExit without saying so.
        origin = getattr(end.__context__, "__cause__", None)
        if isinstance(origin, EOFError):
            _tell(origin)
        if not any(isinstance(each, KeyboardInterrupt) for each in (end, origin)):
            raise
        print("Interrupted.", file=sys.stderr)
        sys.exit(TO_GO_ON if to_go_on.is_set() else INTERRUPTED)
    except Exception as error:
        _tell(error)
    finally:
        gc.freeze()  # else Python looks through all of torch and Ray once more before it ends


def _run() -> None:
    try:
        app()
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error is told


def _tell(error: Exception) -> NoReturn:
    """Prints the error of a user's code or of the system; raises any other."""
    frames = str(error) if isinstance(error, RankFailed) else frames_of_user(error)
    if terminal.debugging or not (frames or isinstance(error, OSError)):
        raise error
    if not isinstance(error, BrokenPipeError):  # of a reader who has seen enough
        told = frames or error
        terminal.complain(f"{told}\nFor the full traceback: orchestrate --debug COMMAND ...")
    if sys.stdout is not None:  # to which Python would write once more what was not written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(FAILED)
