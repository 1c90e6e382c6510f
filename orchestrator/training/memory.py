"""Measures the largest amount of memory that a trial held, and recognises out-of-memory errors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch


class OutOfMemory(RuntimeError):
    """Memory ran out, even with the smallest micro-batch, or with as many trials at once."""


def out_of_memory(error: RuntimeError) -> bool:
    """Tells whether an error means that memory ran out. torch's allocator raises a type of its own;
    other libraries are recognised by their message."""
    words = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def forget_peak(device: torch.device) -> None:
    """Resets the peak of memory, so that `peak` measures from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # makes Linux reset it for this process


def peak(device: torch.device) -> int | None:
    """Returns the peak of memory in bytes since `forget_peak`: that of tensors on a GPU or, without
    a GPU, that of the process. None if the operating system does not tell it."""
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
