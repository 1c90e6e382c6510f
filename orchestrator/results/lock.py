"""The lock of a run, which lets only one process write to it, and tells which process that is."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.files.places import Place
from orchestrator.records import BadInput

PROCESSES = Path("/proc")

NAME = ".lock"

HOLDER = re.compile(r"process ([1-9][0-9]{0,8}) on ([\w.-]+)\n")
"""The content of the lock file. Process 1 is the first one of a machine or a container; in a
container that may be a sweep."""


@contextmanager
def held(place: Place) -> Iterator[Callable[[], None]]:
    """Holds the lock of the run at `place` during the `with` block, so that no other process of
    this machine has it. The operating system releases it when its holder ends in any way. Yields a
    check that raises `OSError` once the run there is no longer the one that is locked."""
    with _opened(place, os.O_RDWR | os.O_CREAT) as file:
        if not _takes(place, file, fcntl.LOCK_EX):
            said = HOLDER.fullmatch(_read(file))
            raise BadInput(
                f"Another sweep is writing to {place}"
                f"{f' ({said[0].strip()})' if said else ''}. Wait for it to end, stop it, or name "
                f"another folder with --out.",
                code="lock-held",
            )
        with _refused(place):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        try:
            yield lambda: _check(place, file)
        finally:
            with suppress(OSError):
                os.ftruncate(file, 0)


def _check(place: Place, file: int) -> None:
    with suppress(FileNotFoundError):
        if place.local is None or os.path.samestat(os.stat(place.local / NAME), os.fstat(file)):
            return
    raise OSError(errno.ESTALE, "the folder was moved, removed or replaced since the sweep began")


def holder(place: Place) -> int | None:
    """The process of this user and machine that holds the lock; None if there is none. A signal may
    be sent to that process, so this raises `BadInput` if another user or machine holds the lock, or
    if the holder is uncertain."""
    try:
        with _opened(place, os.O_RDONLY) as file:
            free = _takes(place, file, fcntl.LOCK_SH)
            said, status = _read(file), os.fstat(file)
    except FileNotFoundError:
        return None
    if not said:
        return None  # its holder has just begun
    found = HOLDER.fullmatch(said)
    # Some shared file systems keep locks within each machine.
    if found is not None and found[2] != socket.gethostname():
        raise BadInput(
            f"A process of another machine is writing to {place}, as its lock file says: "
            f"{said.strip()}. `orchestrate stop` ends it there; on Slurm, `scancel` ends its job. "
            f"If it was killed there, `orchestrate resume` goes on.",
            code="not-yours",
        )
    if free:
        return None
    if found is None or status.st_uid != os.getuid():
        raise BadInput(
            f"A process is writing to {place}, but the lock file names no process of yours. The "
            f"user who started the sweep can stop it, on the machine where it runs.",
            code="not-yours",
        )
    process = int(found[1])
    if not _has_open(process, status):
        if _is_freed(place):
            return None
        raise BadInput(
            f"A process is writing to {place}, but process {process}, which the lock file names, "
            f"is not yours or does not write there. The user who started the sweep can stop it.",
            code="not-yours",
        )
    return process


def _is_freed(place: Place) -> bool:
    """Whether the lock is free within two seconds. While the threads of a process end, it holds
    the lock for a moment longer than its open files can be seen."""
    with _opened(place, os.O_RDONLY) as file:
        return any(_takes(place, file, fcntl.LOCK_SH) for _ in map(time.sleep, 40 * [0.05]))


def _takes(place: Place, file: int, kind: int) -> bool:
    """Whether this process could take the lock, because no other process holds it."""
    with _refused(place):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _read(file: int) -> str:
    return os.pread(file, 1000, 0).decode(errors="replace")


def _has_open(process: int, file: os.stat_result) -> bool:
    """Whether a process of this user has the file open."""
    if not PROCESSES.exists():  # macOS: the file names it, and somebody has it open
        try:
            os.kill(process, 0)
        except OSError:
            return False
        return True
    folder = PROCESSES / str(process)
    try:
        descriptors = [*(folder / "fd").iterdir()] if _is_own(folder.stat()) else []
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):  # the process may close the file in between
            if os.path.samestat(descriptor.stat(), file):
                return True
    return False


@contextmanager
def _opened(place: Place, flags: int) -> Iterator[int]:
    """Opens the lock file. Links are refused: in a folder to which others may write, a link could
    lead to any file of this user."""
    # Without O_NONBLOCK, opening a pipe would wait.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    with _refused(place):
        folder, name = _folder_of(place)
        try:
            file = os.open(name, flags, mode=0o666, dir_fd=folder)
        finally:
            os.close(folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise _refusal(place, "is a link, has more than one name, or is not a regular file")
        yield file
    finally:
        os.close(file)


def _folder_of(place: Place) -> tuple[int, str]:
    """A descriptor of the folder of the lock file, and the file's name. The lock of a bucket lies
    in a folder of this user on this machine. It does not depend on how the user is logged in, as
    $XDG_RUNTIME_DIR would."""
    if place.local is not None:
        return os.open(place.local, os.O_DIRECTORY), NAME
    path = Path(tempfile.gettempdir()) / f"orchestrate-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with suppress(NotADirectoryError):  # a file, or a link
        folder = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(folder)
        if _is_own(status) and not status.st_mode & 0o077:
            return folder, hashlib.blake2b(str(place).encode(), digest_size=16).hexdigest()
        os.close(folder)
    raise BadInput(
        f"{path}, for the lock of {place}, must be a folder of yours with mode 0700. Remove it, or "
        f"set TMPDIR to another folder.",
        code="unsafe-lock",
    )


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid()


@contextmanager
def _refused(place: Place) -> Iterator[None]:
    """Turns errors of the lock file into `BadInput`, but passes FileNotFoundError on: a caller that
    only asks for the holder takes it for an answer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "is a link" if is_link else f"can't be used: {error.strerror or error}"
        raise _refusal(place, reason) from None


def _refusal(place: Place, reason: str) -> BadInput:
    return BadInput(
        f"The lock file of {place} {reason}. Remove it, make the folder writable, or name another "
        f"folder with --out.",
        code="unsafe-lock",
    )
