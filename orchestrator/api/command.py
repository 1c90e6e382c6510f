"""Runs the commands from Python.

A command that trains on Ray runs in a separate process. Ray then never enters the process of a
notebook, works from any thread and beside any other Ray, and may be started anew when it dies. A
command that trains without Ray runs in this process, so that a debugger can step through it.
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
from orchestrator.cli.options import BAD_INPUT, DONE, GOAL_UNREACHED, INTERRUPTED
from orchestrator.cli.terminal import ERROR_FILE, errors
from orchestrator.files.own_code import BY_VALUE, of_main
from orchestrator.records import BadInput, SweepFailed


def run_command(name: str, where: str, options: Mapping[str, Any], *, own: Collection[str]) -> None:
    """Runs the command and returns when it is done, whether or not the goals were reached. `own`
    names the workloads and such of the user, which may be classes of this process's script. Raises
    `BadInput`, `SweepFailed`, or `KeyboardInterrupt` if the command was interrupted."""
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
    """The options as words of the command line."""
    flags = []
    for name, given in options.items():
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        value = pairs(given) if isinstance(given, Mapping) else given
        if isinstance(value, bool):
            flags += [flag] if value else [f"--no-{flag[2:]}"] if name == "ray" else []
        elif isinstance(value, list | tuple):
            flags += [part for item in value for part in (flag, str(item))]
        elif value is not None:
            flags += [flag, str(value)]
    return flags


def pairs(values: Mapping[str, Any]) -> list[str]:
    """The values as NAME=VALUE, in a form that YAML reads."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _in_a_process(arguments: list[str], own: Collection[str]) -> tuple[int, str]:
    """Runs the command in a separate process. Returns its exit code and its error."""
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
            # Without this, an interrupt of the group would reach the process twice: we pass it on.
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
        said = (
            error.read_text()
            if error.is_file()
            else f"`orchestrate {arguments[0]}` ended with exit code {process.returncode}."
        )
        return process.returncode, said
