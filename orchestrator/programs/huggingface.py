"""Reports from the Trainer of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from orchestrator.programs.reporting import refuse_other_batch, refuse_short_step, report

TIMES = ("_runtime", "_per_second", "_time")
"""Ends of the names of metrics that say how long an evaluation took."""


class ReportCallback(TrainerCallback):
    """Reports what each evaluation of a training measures, such as `eval_loss`, and ends the
    training when it need not go on: `Trainer(..., callbacks=[ReportCallback()])`."""

    _trains = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        shared = args.parallelism_config or getattr(more.get("model"), "_tp_size", None)
        known = not (shared or args.accelerator_config.split_batches)  # else ranks share examples
        whole = state.train_batch_size * args.gradient_accumulation_steps * args.world_size
        refuse_other_batch(args.world_size * max(args.n_gpu, 1), whole if known else None)
        drops = args.dataloader_drop_last or args.world_size > 1  # ranks fill the last batch up
        refuse_short_step(more.get("train_dataloader"), whole, drops)
        self._trains = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not self._trains:  # the model may be another than that of the last step
            return
        numbers = {
            name: value
            for name, value in more["metrics"].items()
            if isinstance(value, (int, float)) and not name.endswith(TIMES)
        }
        if not report(state.global_step, numbers):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trains = False
