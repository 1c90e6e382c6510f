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
    for line in lines:
        # `names` are the files that hold quota and period.
        _, controllers, own = line.split(":", 2)
        if controllers == "":  # version 2
            mounts, names = [CGROUPS, CGROUPS / "unified"], ["cpu.max"]
        elif "cpu" in controllers.split(","):
            mounts = [CGROUPS / controllers, CGROUPS / "cpu"]
            names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        path = Path(own.lstrip("/"))
        # A container may see its own group as the root of the mount, under its name outside.
        for folder in {mount / part for mount in mounts for part in (path, *path.parents)}:
            with suppress(OSError, ValueError, ZeroDivisionError):
                words = " ".join((folder / name).read_text() for name in names).split()
                quota, period = map(float, words)  # "max" in place of a number: no bound
                if quota > 0:  # -1: no bound
                    yield quota / period
