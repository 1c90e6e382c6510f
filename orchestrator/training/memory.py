"""Measures the largest amount of memory that a trial held, recognises out-of-memory errors, and
keeps processes that share a GPU to their parts of its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

CONTEXT_BYTES = 5 * 2**28
"""What CUDA takes of a GPU's memory for each process, beside torch's allocator: a process that had
hardly begun held 1.2 GiB of an H100."""


class OutOfMemory(RuntimeError):
    """Memory ran out, even with the smallest micro-batch, or with as many trials at once."""


def out_of_memory(error: RuntimeError) -> bool:
    """Tells whether an error means that memory ran out. torch's allocator raises a type of its own;
    other libraries are recognised by their message."""
    words = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


@contextmanager
def memory_told() -> Iterator[None]:
    """Turns errors that mean that memory ran out into `OutOfMemory`."""
    try:
        yield
    except RuntimeError as error:
        if out_of_memory(error):
            raise OutOfMemory(str(error)) from None
        raise


def keep_to_share(share: float, device: torch.device) -> None:
    """Lets this process take at most this share of a GPU's memory. Otherwise a process may take so
    much that another one fails, and how many trials fit into a stack would depend on neighbours."""
    total = torch.cuda.get_device_properties(device).total_memory
    fraction = max(share - CONTEXT_BYTES / total, share / 2)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


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
