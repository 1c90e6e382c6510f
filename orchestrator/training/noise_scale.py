"""Measures the gradient noise scale of a trial. The measurement has a separate model, separate
examples and separate random numbers, so it changes no bit of the training."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.noise.estimates import Sample, of_chunks
from orchestrator.noise.gradients import chunks_for, per_chunk, per_example
from orchestrator.records import BadInput, Trial, TrialKey, derive_seed
from orchestrator.training.memory import out_of_memory
from orchestrator.training.modifiers import Stream, in_precision
from orchestrator.training.settings import Sorted, sort
from orchestrator.training.stacked_model import Method, as_vmap_can, call
from orchestrator.training.trainer import fresh_model
from orchestrator.workloads import Batch, Split, Workload, divided, example_seeds, mapped
from orchestrator.workloads.ghost_batch_norm import ghost_norms
from orchestrator.workloads.splits import Streamed
from orchestrator.workloads.trees import leaves

EXAMPLES = 512
"""Number of examples of a sample. A smaller training set is used completely."""

SHUFFLED = 2**22
"""Largest number of training examples that are shuffled to draw without replacement. Shuffling more
takes too long, so examples of a larger training set are drawn with replacement."""

POSITIONS = 2**40
"""Number of examples of an endless training set that samples are drawn from."""


@dataclass(kw_only=True)
class NoiseMeter:
    """Measures the noise scale of trials of one workload."""

    workload: Workload
    train: Split
    device: torch.device
    pulse: Callable[[], None] = lambda: None
    """Function that is called for every few examples, as a sign of life."""

    def __post_init__(self) -> None:
        self._maps = True
        """Whether to try gradients of single examples; False once `vmap` has failed."""
        self._at_once: int | None = None
        """Most examples whose gradients fit in memory together; None until memory runs out."""
        self._last: tuple[TrialKey, Sorted, nn.Module] | None = None
        """The trial that was measured last, with its settings and its model. The model is reused,
        since making it takes as long as measuring."""
        self._varies = self.train.seeded
        """Whether the loss of an example varies: by its seed, or by dropout and the like."""

    def measure(self, trial: Trial, state: Mapping[str, Any]) -> dict[str, float]:
        """Returns the columns of a measurement of `trial` at `state`, which is the state that its
        checkpoints hold. They are empty if a gradient is not finite."""
        if self._last is None or self._last[0] != trial.key:
            settings = sort(trial.params, self.workload)
            model = fresh_model(self.workload, derive_seed(trial.seed, "init"), self.device)
            settings.modifiers.prepare(model)
            self._last, self._varies = (trial.key, settings, model), self.train.seeded
        _, settings, model = self._last
        model.load_state_dict(state["model"])
        loss = in_precision(settings.modifiers.precision, self.workload.loss, self.device)
        method = Method(model, partial(loss, **settings.loss))
        seed = derive_seed(trial.seed, "noise scale", state["step"])
        batch = settings.modifiers.cast(self._drawn(seed))
        begun = Stream(seed, self.device).states
        with (stream := Stream(seed, self.device)).in_use():
            sample = self._mapped(method, batch)
        if sample is None:
            with (stream := Stream(seed, self.device)).in_use():
                sample = self._chunked(method, batch)
        if not self._varies and not all(map(torch.equal, begun, stream.states)):
            self._varies = True
            return self.measure(trial, state)
        size = None if self._replaces else self.train.size
        columns = of_chunks(sample, population=size).columns()
        return columns if all(map(math.isfinite, columns.values())) else {}

    @property
    def _replaces(self) -> bool:
        """Whether examples of a finite training set are drawn with replacement. If their losses
        vary, even one that is used completely shows only one value of each."""
        return self._varies or (self.train.size or 0) > SHUFFLED

    def _drawn(self, seed: int) -> Batch:
        split, generator = self.train, torch.Generator().manual_seed(seed)
        if isinstance(split, Streamed):
            index = torch.arange(EXAMPLES)
        elif split.size is None or self._replaces:
            index = torch.randint(split.size or POSITIONS, (EXAMPLES,), generator=generator)
        else:
            index = torch.randperm(split.size, generator=generator)[:EXAMPLES]
        draw = (index, example_seeds(seed, index)) if split.seeded else (index,)
        return next(iter(split.batches([tuple(part.to(split.draws_on) for part in draw)])))

    def _mapped(self, loss: Method, batch: Batch) -> Sample | None:
        """Returns a sample from the gradients of single examples; None if batch norms mix examples,
        or if `vmap` can't map the model."""
        if not self._maps or ghost_norms(loss.model):
            return None
        named = loss.model.named_parameters()
        weights = {name: weight.detach() for name, weight in named if weight.requires_grad}
        buffers = dict(loss.model.named_buffers())  # given, those that it sets are put back
        parts = [part for _, part in leaves(batch)]

        def loss_of_example(weights: Mapping[str, Tensor], example: Sequence[Tensor]) -> Tensor:
            rows = iter(example)
            batch_of_one = mapped(lambda _: next(rows).unsqueeze(0), batch)
            losses: Tensor = call(loss, {**buffers, **weights}, batch_of_one, {})
            return losses[0]

        while True:
            try:
                # `vmap` warns if it falls back to a loop over examples.
                with warnings.catch_warnings(action="error", category=UserWarning), as_vmap_can():
                    return per_example(loss_of_example, weights, parts, self._at_once, self.pulse)
            except BadInput:
                raise
            except Exception as error:
                # `vmap` raises errors of many types for operations that it does not support.
                full = isinstance(error, RuntimeError) and out_of_memory(error)
                if not full or self._at_once == 1:
                    self._maps = False
                    return None
            self._at_once = (self._at_once or len(parts[0])) // 2

    def _chunked(self, loss: Method, batch: Batch) -> Sample:
        """Returns a sample from the gradients of chunks, each a whole number of ghosts."""
        norms = ghost_norms(loss.model)
        ghost = norms[0].ghost_size if norms else 1
        examples = len(next(leaves(batch))[1])
        weights = [weight for weight in loss.model.parameters() if weight.requires_grad]
        size = math.ceil(examples / chunks_for(weights) / ghost) * ghost
        if (count := examples // size) < 2:
            raise BadInput(
                f"The noise scale needs two chunks of {size} examples (whole ghosts of the batch "
                f"norms), but there are only {examples}. Take smaller ghosts, or no `noise_scale`.",
                code="too-few",
            )

        def gradients() -> Iterator[Sequence[Tensor]]:
            for _, part in zip(range(count), divided(batch, size), strict=False):
                self.pulse()
                losses = loss(part, {})
                yield torch.autograd.grad(losses.mean(), weights, materialize_grads=True)

        return per_chunk(gradients(), size)
