"""The memory of a device: the most that a trial held, and errors that say there is too little."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch


class OutOfMemory(RuntimeError):
    """Not even the smallest micro-batch fits, or not so many trials at once."""


def out_of_memory(error: RuntimeError) -> bool:
    """torch's allocator has an error of its own for it; others only have words."""
    words = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def forget_peak(device: torch.device) -> None:
    """From here on the peak is of what comes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # has Linux do so for this process


def peak(device: torch.device) -> int | None:
    """In bytes: what tensors took on the GPU, or the whole process where there is none. None where
    the system doesn't say."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(
        (1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")),
        None,
    )
