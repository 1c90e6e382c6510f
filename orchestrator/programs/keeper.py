"""Keeps one program: starts it, writes its output to a log of bounded size, and ends it with
everything that it has started. It runs as a process of its own, with the standard library alone.
It ends the program, too, when the process that started it is gone, however that happened: their
pipe closes then.

The first line of its input is what to start, in JSON. Another line, or the end of its input, asks
it to end the program: by SIGTERM first, then by SIGKILL. It prints one line of JSON when nothing of
the program is left.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36
"""Options of Linux's prctl."""

LONGEST_LINE = 65536
"""Bytes of a line of output that are looked at: its end, as a bar may write it without a break."""

LOG_BYTES = 1_000_000
"""Largest size of the log of a program."""

LAST = 20
"""Lines of output that are told when a program fails."""

COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # Their digits are none of a number.

OF_TORCHRUN = re.compile(rb"torch[./]distributed[./]elastic(?:.*(failed) \(exitcode: (-?))?")
"""Lines in which torchrun says that it ends its processes, and that one has failed, maybe by a
signal. What it says then is longer than that, and hides the error."""

OF_ACCELERATE = re.compile(
    rb"(?s)accelerate/commands/launch\.py.*\nsubprocess\.CalledProcessError: (?!.* died with <)"
)
"""A traceback in which accelerate says that its process has failed, but not how."""


class Log:
    """The output of a program: its beginning in a file at once, and its end when it is over."""

    def __init__(self, path: str, heard: Callable[[bytes], None]) -> None:
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - open until the end
        self._room, self._end, self._left_out = LOG_BYTES // 2, bytearray(), 0
        self._heard, self._line = heard, bytearray()
        self.last: list[bytes] = []
        self._failed = False

    def write(self, part: bytes) -> None:
        self._keep(part[: self._room])
        self._end += part[self._room :]
        self._room = max(self._room - len(part), 0)
        if len(self._end) > LOG_BYTES:
            self._shorten()
        # A progress bar ends its lines with a carriage return.
        *lines, rest = (bytes(self._line) + part).replace(b"\r", b"\n").split(b"\n")
        self._line = bytearray(rest[-LONGEST_LINE:])
        for line in lines:
            self._see(line)

    def _shorten(self) -> None:
        more = max(len(self._end) - LOG_BYTES // 2, 0)
        self._left_out += more
        del self._end[:more]

    def _see(self, line: bytes) -> None:
        if (line := COLOURS.sub(b"", line)).strip():
            launcher = OF_TORCHRUN.search(line)
            if not self._failed and (launcher is None or launcher[2]):
                self.last = [*self.last[1 - LAST :], line[:500]]
            self._failed = self._failed or bool(launcher and launcher[1])
            self._heard(line[-LONGEST_LINE:])

    def close(self) -> None:
        self._see(bytes(self._line))
        traces = [n for n, line in enumerate(self.last) if line.startswith(b"Traceback (most")]
        if traces and OF_ACCELERATE.search(b"\n".join(self.last[traces[-1] :])):
            self.last = self.last[: traces[-1]] or self.last
        self._shorten()
        if self._left_out:
            self._keep(b"\n... %d bytes are left out here ...\n" % self._left_out)
        self._keep(bytes(self._end))
        self._file.close()

    def _keep(self, part: bytes) -> None:
        with suppress(OSError):  # a full disk, say, which is no reason to end the program
            self._file.write(part)


def reports_in(pattern: str, path: str) -> Callable[[bytes], None]:
    """Finds reports in lines of output, and writes them to the file at `path`."""
    if not pattern:
        return lambda line: None
    look = re.compile(pattern).search
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def heard(line: bytes) -> None:
        if (match := look(line.decode(errors="replace"))) is not None:
            found = {name: text for name, text in match.groupdict().items() if text is not None}
            if "time" in found:  # a metric, whose name is that of the clock
                found["program/time"] = found.pop("time")
            report = json.dumps({"time": time.time(), **found})
            os.write(file, f"{report}\n".encode())

    return heard


def keep(order: dict[str, Any]) -> dict[str, Any]:
    """Keeps a program until nothing of it is left. Returns its exit code and its last lines."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    for path in (order["log"], order["lock"]):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    lock = os.open(order["lock"], os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):  # storage without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    log = Log(order["log"], reports_in(order["pattern"], order["reports"]))
    looked = selectors.DefaultSelector()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        program = subprocess.Popen(
            order["command"], env=order["environment"], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            # This process has one thread.
            preexec_fn=lambda: libc.prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
        )  # fmt: skip
    except OSError as error:
        log.close()
        return {"code": 127, "last": [f"{order['command'][0]}: {error.strerror or error}"]}
    told: dict[int, int] = {}
    for n in (signal.SIGTERM, signal.SIGUSR1):  # those of a machine that is taken away
        signal.signal(n, lambda number, _: _send(program.pid, told.setdefault(number, number)))
    assert program.stdout is not None
    output = program.stdout.fileno()
    for file in (0, woken, output):
        looked.register(file, selectors.EVENT_READ)
    kill_at: float | None = None
    while program.poll() is None:
        left = None if kill_at is None else max(kill_at - time.monotonic(), 0)
        for key, _ in looked.select(left):
            part = os.read(key.fd, LONGEST_LINE)
            if key.fd == output and part:
                log.write(part)
            elif key.fd != woken:
                looked.unregister(key.fd)
                if key.fd == 0:
                    _send(program.pid, signal.SIGTERM)
                    kill_at = time.monotonic() + order["patience"]
        if kill_at is not None and time.monotonic() >= kill_at:
            _send(program.pid, signal.SIGKILL)
            program.wait()
    end_all()
    os.set_blocking(output, False)
    with suppress(BlockingIOError):
        while part := os.read(output, LONGEST_LINE):
            log.write(part)
    log.close()
    return {
        # One that saves its state and ends well, as it was told to, has not trained to its end.
        "code": program.returncode or -next(iter(told), 0),
        "last": [line.decode(errors="replace") for line in log.last],
    }


def _send(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def end_all() -> None:
    """Ends all that descends from this process. It adopts those whose parents have ended."""
    while found := children():
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)


def children() -> list[int]:
    found, own = [], os.getpid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == own:
                found.append(int(name))
    return found


if __name__ == "__main__":
    # Unbuffered, as nothing may be read beyond the first line.
    with open(0, "rb", buffering=0, closefd=False) as told:
        try:
            answer = keep(json.loads(told.readline()))
        except OSError as error:  # of a file of ours, such as that of the reports
            end_all()
            answer = {"code": 127, "last": [str(error)]}
    with suppress(BrokenPipeError):  # nobody is left to hear it
        os.write(1, f"{json.dumps(answer)}\n".encode())
