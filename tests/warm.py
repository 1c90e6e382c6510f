"""Runs the command, or a script, in a separate process that need not load torch again, which takes
two seconds."""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 900

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch", "orchestrator.cli.sessions", "orchestrator.planning.studies",
        "orchestrator.report", "orchestrator.sweeping.local",
        # What torch and Arrow import late.
        "torch.fx.experimental.symbolic_shapes", "pandas",
    ]
)  # fmt: skip


def orchestrate(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(["orchestrate", *arguments], cwd)


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command, or else the script, with its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("out", "err")]
        process = SERVER.Process(target=_run, args=(arguments, cwd, dict(os.environ), said))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(arguments, SECONDS, said[0].read_bytes())
        return subprocess.CompletedProcess(
            arguments, process.exitcode, *(path.read_text() for path in said)
        )


def _run(arguments: list[str], cwd: Path, environment: dict[str, str], said: list[Path]) -> None:
    from orchestrator.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate(said, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = arguments
    script = arguments[0]
    try:
        if script == "orchestrate":
            main()
        else:
            sys.path[0] = str(Path(script).parent)
            runpy.run_path(script, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # which the end of such a process leaves out
