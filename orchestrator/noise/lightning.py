"""The gradient noise scale in Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from orchestrator.noise.loop import NoiseScale, refuse_shards
from orchestrator.records import BadInput


class NoiseScaleCallback(Callback):
    """Measures the noise scale and sends it to the trainer's logger, as `noise/...`.

    callback = NoiseScaleCallback(micro_batch=32)
    Trainer(callbacks=[callback], accumulate_grad_batches=8).fit(...)
    print(callback.noise.report())
    """

    noise: NoiseScale

    def __init__(self, *, micro_batch: int, decay: float = 0.99) -> None:
        """`micro_batch` is the batch size, in examples, of the data loader of one rank."""
        self._micro_batch, self._decay = micro_batch, decay
        self._passes = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            raise BadInput(
                "The callback needs automatic optimization, to know when a step is complete. Use "
                "orchestrator.noise.NoiseScale in `training_step`, as in a plain loop.",
                code="manual-optimization",
            )
        self._count = int(trainer.accumulate_grad_batches)
        model = trainer.strategy.model
        assert model is not None, "training has started"
        refuse_shards(model)
        self.noise = NoiseScale(
            model,
            batch_size=self._micro_batch * self._count * trainer.world_size,
            micro_batch=self._micro_batch,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            decay=self._decay,
        )

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._passes += 1
        self.noise.after_backward()
        if self._passes == self._count:
            # At this point gradients are as `backward` left them, neither unscaled nor clipped.
            self.noise.before_step()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        # The last step of an epoch may have fewer micro-batches.
        self.noise.forget_step()
        self._passes = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *arguments: Any
    ) -> None:
        if self._passes == 0 and (metrics := self.noise.metrics()):
            pl_module.log_dict(metrics)
