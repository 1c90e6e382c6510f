"""What a script says to its sweep, by the standard library alone; elsewhere it does nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

DEFAULT_PATIENCE = 600.0
"""Seconds that ranks wait for each other in `report`."""

MOST_UNTRAINED = 0.02
"""Share of the examples that may be counted though a smaller batch never trained them."""

_groups: list[Any] = []
"""The group by which ranks tell each other, once it is made."""


def report(step: int, metrics: Mapping[str, Any], *, alone: bool = False) -> bool:
    """Reports what was measured after `step` steps. Returns whether the training should go on: once
    it need not, end it. Call it at rising steps.

    If the script trains on several ranks with `torch.distributed`, all of them call it. The numbers
    of rank 0 count, and all get the same answer. With `alone`, only the rank that calls it takes
    part, and the script tells the others.
    """
    file, stop = os.environ.get("ORCHESTRATE_REPORTS"), os.environ.get("ORCHESTRATE_STOP")
    if not file or not stop:
        return True
    together = None if alone else _distributed()
    if together is None or together.get_rank() == 0:
        _write(file, step, metrics)
    elif not isinstance(metrics, Mapping):
        raise TypeError("report(step, metrics): metrics must be a dict of names and numbers")
    goes_on = not os.path.exists(stop)
    return goes_on if together is None else _as_first_says(together, goes_on)


def _write(file: str, step: int, metrics: Mapping[str, Any]) -> None:
    try:
        numbers = {
            f"program/{name}" if name in ("step", "time") else str(name): float(
                value.item() if hasattr(value, "item") else value
            )
            for name, value in metrics.items()
        }
        line = json.dumps({**numbers, "step": float(step), "time": time.time()})
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"report(step, metrics): step must be a number and metrics a dict of names and "
            f"numbers, but got {step!r} and {metrics!r} ({error})"
        ) from None
    with open(file, "ab", buffering=0) as handle:
        handle.write(f"{line}\n".encode())


def _distributed() -> Any:
    """torch.distributed if several ranks train; None otherwise."""
    together = sys.modules.get("torch.distributed")
    if together is None or not together.is_available() or not together.is_initialized():
        return None
    refuse_other_batch(together.get_world_size())
    return together if together.get_world_size() > 1 else None


def refuse_other_batch(ranks: int, examples: int | None = None) -> None:
    """Raises `RuntimeError` if the batch was divided over another number of devices than train: the
    batch size of each step would not be that of the trial. So does a step of other `examples`."""
    told = json.loads(os.environ.get("ORCHESTRATE_TRIAL", "{}"))
    if "batch_size_per_device" in told and told["devices"] != ranks:
        raise RuntimeError(
            f"the batch of {told['batch_size']} is divided by {told['devices']}, the number of "
            f"devices by `resources`, but the number of ranks is {ranks}. Let the command start "
            f"{{devices}} of them, or change `resources`"
        )
    if examples not in (None, told.get("batch_size", examples)):
        raise RuntimeError(
            f"a step of the trainer takes {examples} examples on {ranks} ranks, but the trial's "
            f"batch size is {told['batch_size']}. Give it {{batch_size_per_device}} and "
            f"{{accumulation_steps}}, and start {{devices}} ranks"
        )


def refuse_short_step(loader: Any, examples: int, drops: bool = False) -> None:
    """Raises `RuntimeError` if smaller last batches lack too many of the counted `examples`."""
    try:
        told, rows = json.loads(os.environ["ORCHESTRATE_TRIAL"]), len(loader.dataset)
        short = rows % examples if rows < examples or not (drops or loader.drop_last) else 0
    except (AttributeError, KeyError, TypeError):  # started by hand, or a stream
        return
    many = examples - short > MOST_UNTRAINED * (rows + examples - short)
    if short and many and examples == told["batch_size"] and rows < examples * told["steps"]:
        raise RuntimeError(
            f"the training set has {rows} examples, so a step takes {short}, not {examples}. Set "
            f"drop_last (--dataloader_drop_last true), and write `examples: {rows}` in the workload"
        )


def _as_first_says(together: Any, goes_on: bool) -> bool:
    """The answer of rank 0, over a group of its own: the script's may be busy, or on GPUs."""
    import torch

    seconds = float(os.environ.get("ORCHESTRATE_PATIENCE", DEFAULT_PATIENCE))
    try:
        if not _groups:
            patience = timedelta(seconds=seconds)
            _groups.append(together.new_group(backend="gloo", timeout=patience))
        answers = torch.tensor([int(goes_on) if together.get_rank() == 0 else 0])
        together.all_reduce(answers, group=_groups[0])
    except RuntimeError as error:
        raise RuntimeError(
            f"report(): not all ranks called it within {seconds:g} seconds. Each rank must call "
            f"it, not rank 0 alone; or call report(..., alone=True) on rank 0 and tell the others "
            f"its answer. ({error})"
        ) from None
    return bool(answers.item())
