"""The `orchestrate` command: parse, call one stage, print.

Whatever is slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import sys

import typer

from orchestrator.cli import archives, planning, reading, registries, report, runs, trial
from orchestrator.cli.ending import heed_termination
from orchestrator.cli.options import BAD_INPUT, INTERRUPTED
from orchestrator.records import BadInput


def _exit_with(code: int) -> None:
    raise typer.Exit(code)


app = typer.Typer(
    result_callback=_exit_with,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How far can your batch size scale? Plan, run and read the experiment that tells.",
)

for command in (
    runs.sweep,
    runs.resume,
    runs.stop,
    planning.plan,
    reading.status,
    reading.frontier,
    reading.best,
    report.report,
    trial.trial,
    registries.workloads,
    registries.spaces,
    archives.export,
):
    app.command()(command)
app.command("import")(archives.import_)
app.add_typer(registries.data_app, name="data")


def main() -> None:
    """The console script."""
    heed_termination()
    try:
        app()
    except BadInput as error:
        from orchestrator.cli.terminal import say

        say(f"error: {error}")
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, SystemExit) as end:
        # Typer makes the one of the other, without a word.
        origin = getattr(end.__context__, "__cause__", None)
        if not any(isinstance(each, KeyboardInterrupt) for each in (end, origin)):
            raise
        print("Interrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
