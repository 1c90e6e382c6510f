"""The gradient noise scale in the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from orchestrator.noise.loop import NoiseScale, refuse_shards
from orchestrator.records import BadInput


class NoiseScaleCallback(TrainerCallback):
    """Measures the noise scale and logs it with the trainer's other numbers, as `noise/...`.

    callback = NoiseScaleCallback(trainer)
    trainer.add_callback(callback)
    trainer.train()
    print(callback.noise.report())
    """

    noise: NoiseScale

    def __init__(self, trainer: Trainer, *, decay: float = 0.99) -> None:
        self._trainer, self._decay = trainer, decay
        arguments = trainer.args
        self._count = int(arguments.gradient_accumulation_steps)
        if self._count < 2:
            raise BadInput(
                "gradient_accumulation_steps must be at least 2, as the noise scale compares "
                f"micro-batches, but is {self._count}. Divide per_device_train_batch_size by it.",
                code="too-few",
            )
        self._handles: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        model = self._trainer.model
        assert isinstance(model, nn.Module)
        refuse_shards(model)
        micro_batch = int(args.train_batch_size)  # of all devices that this process feeds
        self.noise = NoiseScale(
            model,
            batch_size=micro_batch * self._count,
            micro_batch=micro_batch,
            scaler=getattr(self._trainer.accelerator, "scaler", None),
            decay=self._decay,
        )
        # The trainer clips gradients before it calls its callbacks at the end of the last backward
        # pass. So each gradient is measured when it is accumulated.
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._seen)  # type: ignore[no-untyped-call]
            for parameter in model.parameters()
            if parameter.requires_grad
        ]

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._micro_batch = 0
        self._squares: dict[int, list[Tensor]] = {0: [], self._count - 1: []}

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._micro_batch += 1

    def _seen(self, parameter: Tensor) -> None:
        if self._micro_batch in self._squares and parameter.grad is not None:
            length = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32)
            self._squares[self._micro_batch].append(length.square())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        first, last = self._squares.values()
        if first and last:  # the last step of an epoch may have fewer micro-batches
            self.noise.record(torch.stack(first).sum(), torch.stack(last).sum())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_log and (metrics := self.noise.metrics()):
            self._trainer.log(metrics)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for handle in self._handles:
            handle.remove()
