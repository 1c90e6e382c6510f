"""Reports from Lightning's Trainer."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from orchestrator.programs.reporting import refuse_other_ranks, report


class ReportCallback(Callback):
    """Reports the metrics that are logged by each validation of a training, and ends the training
    when it need not go on: `Trainer(..., callbacks=[ReportCallback()])`."""

    _last = -1

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        refuse_other_ranks(trainer.world_size)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        # While gradients are accumulated, several validations may come after the same step.
        if trainer.global_step > self._last:
            self._last = trainer.global_step
            if not report(self._last, trainer.callback_metrics):
                trainer.should_stop = True
