"""One writer at a time: the lock of a run, and which process holds it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.files.places import Place
from orchestrator.records import BadInput

HOLDER = re.compile(r"process ([1-9][0-9]{0,8}) on ([\w.-]+)\n")
"""What the lock file says. Process 1 is the machine's or the container's, where a sweep may be."""


@contextmanager
def held(place: Place) -> Iterator[None]:
    """Within, no other process of this machine holds the lock of the run there. It is the system's
    lock: it goes with its holder, however that ends."""
    with _opened(place, os.O_RDWR | os.O_CREAT) as file:
        if not _takes(place, file, fcntl.LOCK_EX):
            said = HOLDER.fullmatch(_read(file))
            raise BadInput(
                f"{place} is being written to by another sweep"
                f"{f' ({said[0].strip()})' if said else ''}. Wait for it to end, stop it, or name "
                f"another folder with --out."
            )
        with _refused(place):
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield


def holder(place: Place) -> int | None:
    """The process of this user and machine that holds the lock; None if there is none. Raises
    `BadInput` where another one does, or it isn't sure: a signal may be sent to it."""
    try:
        with _opened(place, os.O_RDONLY) as file:
            if _takes(place, file, fcntl.LOCK_SH):
                return None
            said, status = _read(file), os.fstat(file)
    except FileNotFoundError:
        return None
    if not said:
        return None  # it has just begun
    found = HOLDER.fullmatch(said)
    if found is None or status.st_uid != os.getuid():
        raise BadInput(
            f"{place} is being written to, but its lock file doesn't say by which process of "
            f"yours. It can be stopped where it was started, by its user."
        )
    if found[2] != socket.gethostname():
        raise BadInput(f"{place} is being written to by {said.strip()}. Stop it there.")
    process = int(found[1])
    if not _has_open(process, status):
        raise BadInput(
            f"{place} is being written to, but not by process {process}, as its lock file has it: "
            f"that one is not yours, or is none that writes there. It can be stopped where it was "
            f"started, by its user."
        )
    return process


def _takes(place: Place, file: int, kind: int) -> bool:
    """Whether nobody else holds the lock."""
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
    folder = Path(f"/proc/{process}")
    try:
        descriptors = [*(folder / "fd").iterdir()] if _is_own(folder.stat()) else []
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):  # closed just now
            if os.path.samestat(descriptor.stat(), file):
                return True
    return False


@contextmanager
def _opened(place: Place, flags: int) -> Iterator[int]:
    """The lock file. Where others may write too, a link could lead to any file of this user's."""
    # A pipe would be waited for.
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
            raise BadInput(_refusal(place, "is a link, has other names too, or is no file"))
        yield file
    finally:
        os.close(file)


def _folder_of(place: Place) -> tuple[int, str]:
    """A descriptor of the folder, and the file's name in it. That of a bucket is this user's own on
    this machine, and does not depend on how one is logged in, as $XDG_RUNTIME_DIR would."""
    if place.local is not None:
        return os.open(place.local, os.O_DIRECTORY), ".lock"
    path = Path(tempfile.gettempdir()) / f"orchestrate-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with suppress(NotADirectoryError):  # or a link
        folder = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
        status = os.fstat(folder)
        if _is_own(status) and not status.st_mode & 0o077:
            return folder, hashlib.blake2b(str(place).encode(), digest_size=16).hexdigest()
        os.close(folder)
    raise BadInput(
        f"The lock of {place} would lie in {path}, which must be a folder of yours with mode 0700, "
        f"and is not. Remove it, or set TMPDIR to a folder of your own."
    )


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid()


@contextmanager
def _refused(place: Place) -> Iterator[None]:
    """That there is no file goes through: who only asks takes it for an answer."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        reason = "is a link" if is_link else f"can't be used: {error.strerror or error}"
        raise BadInput(_refusal(place, reason)) from None


def _refusal(place: Place, reason: str) -> str:
    return (
        f"The lock file of {place} {reason}. Remove it, see to it that you may write there, or "
        f"name another folder with --out."
    )
