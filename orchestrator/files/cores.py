"""How many cores this process may use."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """Number of cores that this process may use. A container may have the time of two cores on a
    machine of 64: more processes than that would only take turns."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, int(min([allowed, *_quotas()])))


def _quotas() -> Iterator[float]:
    """The time that this process's cgroups and those above them allow, in cores."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for own in (line.removeprefix("0::") for line in lines if line.startswith("0::")):
        path = Path(own.lstrip("/"))
        # A container may see its own group as the root of the mount, under its name outside.
        for folder in (CGROUPS / part for part in (path, *path.parents)):
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = map(float, (folder / "cpu.max").read_text().split())
                yield quota / period
