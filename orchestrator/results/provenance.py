"""The versions and the machine that made a run, by which its numbers can be explained later."""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from orchestrator.files.cores import cores

DRIVER = Path("/proc/driver/nvidia/gpus")
PACKAGES = ("ray", "torch", "numpy", "scipy", "pyarrow", "optuna", "scikit-learn")


def provenance() -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": _version("orchestrate-batch-size") or "not installed",
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": cores(),
        **({"gpus": found} if (found := _gpus()) else {}),
    }


def _version(package: str) -> str | None:
    """None where it is not installed: a checkout trains without, and `--no-ray` without Ray."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _commit() -> str | None:
    """The commit of the checkout that this code runs from, with a mark if files differ from it."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus() -> str:
    """The models of this machine's GPUs, as NVIDIA's driver states them on Linux."""
    texts = []
    with suppress(OSError):  # a container may hide them
        texts = [file.read_text() for file in DRIVER.glob("*/information")]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("Model:")]
    models = Counter(line.partition(":")[2].strip() for line in lines)
    return ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
