"""Commands, given from Python.

One that trains on Ray is a process of its own: Ray then never enters the process of a notebook,
works from any thread and beside any other Ray, and may be started anew when it dies. One that
trains without Ray runs here, so that a debugger sees it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from orchestrator.cli import call
from orchestrator.cli.ending import ERROR_FILE
from orchestrator.cli.options import BAD_INPUT, DONE, GOAL_UNREACHED, INTERRUPTED
from orchestrator.cli.terminal import errors
from orchestrator.files.own_code import BY_VALUE, of_main
from orchestrator.records import BadInput, SweepFailed


def run_command(name: str, where: str, options: Mapping[str, Any], *, own: Collection[str]) -> None:
    """Returns once it is done, be the goals reached or not; what is named `own` may be classes of
    this process's script. Raises `BadInput`, `SweepFailed`, or a
    `KeyboardInterrupt` where somebody has ended it."""
    rest = {option: given for option, given in options.items() if option != "quiet"}
    arguments = [*(["--quiet"] if options.get("quiet") else []), name, where, *_flags(rest)]
    if options.get("ray") is False:
        with redirect_stdout(io.StringIO()):
            code = call(arguments)
        error = errors[-1] if errors else ""
    else:
        code, error = _in_a_process(arguments, own)
    if code in (DONE, GOAL_UNREACHED):
        return
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    raise (BadInput if code == BAD_INPUT else SweepFailed)(error)


def _flags(options: Mapping[str, Any]) -> list[str]:
    """As they are written on the command line."""
    flags = []
    for name, given in options.items():
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        value = pairs(given) if isinstance(given, Mapping) else given
        if isinstance(value, bool):
            flags += [flag] if value else [f"--no-{flag[2:]}"] if name == "ray" else []
        elif isinstance(value, list | tuple):
            flags += [part for one in value for part in (flag, str(one))]
        elif value is not None:
            flags += [flag, str(value)]
    return flags


def pairs(values: Mapping[str, Any]) -> list[str]:
    """NAME=VALUE of each, as YAML reads it."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _in_a_process(arguments: list[str], own: Collection[str]) -> tuple[int, str]:
    """Its exit code, and the error that it ended with."""
    with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
        error, by_value = Path(folder) / "error.txt", Path(folder) / "workloads.pickle"
        env = {**os.environ, ERROR_FILE: str(error)}
        if classes := of_main(own):
            import cloudpickle

            by_value.write_bytes(cloudpickle.dumps(classes))
            env[BY_VALUE] = str(by_value)
        watched = sys.stderr.isatty()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli", *arguments],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=None if watched else subprocess.PIPE, text=True,
            # An interrupt of the whole group is passed on by us, once.
            process_group=0,
        )  # fmt: skip
        with process:
            while process.returncode is None:
                try:
                    for line in process.stderr or ():
                        print(line, end="", file=sys.stderr, flush=True)
                    process.wait()
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGINT)
        said = error.read_text() if error.is_file() else f"it ended with {process.returncode}"
        return process.returncode, said
