"""The noise scale in the trainers of other libraries: their logs have the numbers of the plain
loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import refused
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from orchestrator.noise import NoiseScale

# What these libraries warn of is their own affair.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EXAMPLES, MICRO, COUNT, RATE, CLIP = 64, 4, 4, 0.05, 0.01


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(EXAMPLES, 6, generator=generator),
        torch.randint(3, (EXAMPLES,), generator=generator),
    )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(6, 3)


@pytest.fixture(scope="module")
def by_hand() -> dict[str, float]:
    """Runs the plain loop: one pass in order, with gradients clipped to nearly nothing."""
    model, (inputs, labels) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    noise = NoiseScale(model, batch_size=MICRO * COUNT, micro_batch=MICRO)
    parts = [*zip(inputs.split(MICRO), labels.split(MICRO), strict=True)]
    for number, (some, classes) in enumerate(parts, start=1):
        (nn.functional.cross_entropy(model(some), classes) / COUNT).backward()
        noise.after_backward()
        if number % COUNT == 0:
            noise.before_step()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    return noise.metrics()


def finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if abs(value) < float("inf")}


def test_hugging_face(by_hand: dict[str, float], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from orchestrator.noise.huggingface import NoiseScaleCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = network()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.linear(inputs)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    class InOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *arguments: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    inputs, labels = data()
    rows = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]

    def arguments(count: int) -> Any:
        return transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=MICRO,
            gradient_accumulation_steps=count, num_train_epochs=1, learning_rate=RATE,
            lr_scheduler_type="constant", optim="sgd", max_grad_norm=CLIP, logging_steps=1,
            report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip

    trainer = InOrder(model=Model(), args=arguments(COUNT), train_dataset=rows)
    callback = NoiseScaleCallback(trainer)
    trainer.add_callback(callback)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "noise/variance" in line][-1]
    assert finite({n: v for n, v in logged.items() if n.startswith("noise/")}) == pytest.approx(
        finite(by_hand), rel=1e-4
    )
    assert callback.noise.report().startswith("noise scale")
    trainer.args._n_gpu = 2  # one process feeds both, as many examples each
    callback.on_train_begin(trainer.args, None, None)
    for _ in range(2):
        callback.noise.record(torch.ones(1), torch.ones(1))
    assert (estimate := callback.noise.estimate) is not None
    assert estimate.variance == pytest.approx(2 * MICRO * COUNT * (COUNT + 1))
    with refused("too-few", "gradient_accumulation_steps", 2, 1):
        NoiseScaleCallback(InOrder(model=Model(), args=arguments(1), train_dataset=rows))


def test_lightning(by_hand: dict[str, float], tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from orchestrator.noise.lightning import NoiseScaleCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = network()

        def training_step(self, batch: Any, _: int) -> Tensor:
            inputs, labels = batch
            return nn.functional.cross_entropy(self.linear(inputs), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    callback = NoiseScaleCallback(micro_batch=MICRO)
    logger = CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=COUNT, gradient_clip_val=CLIP, callbacks=[callback],
        logger=logger, log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(TensorDataset(*data()), batch_size=MICRO, num_workers=0))
    assert finite(callback.noise.metrics()) == pytest.approx(finite(by_hand), rel=1e-4)
    logged = {name: float(v) for name, v in trainer.logged_metrics.items() if "noise/" in name}
    assert finite(logged) == pytest.approx(finite(by_hand), rel=1e-4)
