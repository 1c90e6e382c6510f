"""Runs the commands from Python.

A command that trains on Ray runs in a separate process. Ray then never enters the process of a
notebook, works from any thread and beside any other Ray, and may be started anew when it dies. A
command that trains without Ray runs in this process, so that a debugger can step through it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import BAD_INPUT, TO_GO_ON
from orchestrator.cli.sessions import CODES, how_to_train, refuse_together
from orchestrator.cli.terminal import ERROR_FILE, console
from orchestrator.files.own_code import hand_over, name_of
from orchestrator.records import BadInput, SweepFailed

if TYPE_CHECKING:
    from orchestrator.sweeping.session import Ended, How

training_here = threading.RLock()
"""Held while a thread trains in this process, where a fresh model draws from torch's one generator
and `vmap` has one state."""

STATUSES = {**{code: status for status, code in CODES.items()}, TO_GO_ON: "interrupted"}


def run_command(
    name: str,
    where: str,
    here: Callable[[How], Ended],
    *,
    own: Collection[str],
    quiet: bool,
    **options: Any,
) -> None:
    """Runs a command that trains, or calls `here` if it trains in this process. Returns when it is
    done, whether or not the goals were reached. Raises `BadInput`, `SweepFailed`, or
    `KeyboardInterrupt` if it was interrupted. `own` names workloads and such of the user, which may
    be classes of this script."""
    if options["ray"] is not False:
        exit_code, code, error = _in_a_process(name, where, own, quiet, options)
        if exit_code == BAD_INPUT:
            raise BadInput(error, code=code)
        status = STATUSES.get(exit_code, "failed")
    else:
        folder = options["data_dir"]
        refuse_together(options["address"], options.get("cluster"), ray=False)
        how = how_to_train(
            address=options["address"],
            data_dir=None if folder is None else Path(folder),
            track=several(options.get("track")),
            yes=options.get("yes", True),
            ray=False,
        )
        before, console.quiet = console.quiet, quiet or console.quiet
        try:
            with training_here:
                ended = here(how)
        finally:
            console.quiet = before
        status, error = ended.status, ended.error
    if status == "interrupted":
        raise KeyboardInterrupt
    if status == "failed":
        raise SweepFailed(error)


def _in_a_process(
    name: str, where: str, own: Collection[str], quiet: bool, options: Mapping[str, Any]
) -> tuple[int, str, str]:
    """Runs the command in a separate process: its exit code, its error's code and text."""
    with tempfile.TemporaryDirectory(prefix="orchestrate-") as folder:
        error = Path(folder) / "error.txt"
        handed = hand_over(own, Path(folder) / "workloads.pickle")
        env = {**os.environ, ERROR_FILE: str(error), **handed}
        watched = sys.stderr.isatty()
        words = [*["--quiet"] * quiet, name, where, *_flags(options)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli", *words],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=None if watched else subprocess.PIPE, text=True,
            # An interrupt of our group would reach the process twice, since we pass it on.
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
        said = f"\n`orchestrate {name}` ended with exit code {process.returncode}."
        code, _, text = ((error.is_file() and error.read_text()) or said).partition("\n")
        return process.returncode, code, text


def _flags(options: Mapping[str, Any]) -> list[str]:
    """The options as words of the command line."""
    flags = []
    for name, given in options.items():
        flag = f"--{name.replace('_', '-')}"
        if given is True:
            flags.append(flag)
        elif given is not False:
            flags += [part for item in several(given) for part in (flag, str(item))]
    return flags


def several(given: Any) -> list[Any]:
    """The values of an argument that may be left out, stand alone, or be several; a mapping as
    NAME=VALUE."""
    if isinstance(given, Mapping):
        # JSON is YAML, in which the command reads each value.
        return [f"{name}={json.dumps(value)}" for name, value in as_in_files(given).items()]
    if given is None:
        return []
    return [given] if isinstance(given, str | Path) else [*given]


def as_in_files(value: Any) -> Any:
    """The value as files hold it: with the name of each class or function in it, and with Python's
    own numbers and lists for those of numpy."""
    if isinstance(value, Mapping):
        return {name: as_in_files(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_in_files(item) for item in value]
    if isinstance(value, type | FunctionType):
        return name_of(value)
    return value.tolist() if hasattr(value, "tolist") else value
