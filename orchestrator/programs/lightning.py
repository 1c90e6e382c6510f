"""Reports from Lightning's Trainer."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from orchestrator.programs.reporting import refuse_other_batch, refuse_short_step, report


class ReportCallback(Callback):
    """Reports the metrics that are logged by each validation of a training, and ends the training
    when it need not go on: `Trainer(..., callbacks=[ReportCallback()])`."""

    _last = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        replicas = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
        times = trainer.accumulate_grad_batches * replicas
        # A loader that has no size, or whose rows are batches, doesn't tell; nor do steps by hand.
        size = getattr(trainer.train_dataloader, "batch_size", None) or 1
        known = min(size, times) > 1 and pl_module.automatic_optimization
        refuse_other_batch(trainer.world_size, size * times if known else None)
        refuse_short_step(trainer.train_dataloader, size * times)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        # While gradients are accumulated, several validations may come after the same step.
        if trainer.global_step > self._last:
            self._last = trainer.global_step
            if not report(self._last, trainer.callback_metrics):
                trainer.should_stop = True
