"""Streams of random numbers that depend on a trial alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Stream:
    """The random numbers of one rank's dropout and noise. They do not depend on what else the
    process draws from torch's generators."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        before = self._current()
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        self.states = self._current()
        """The state of each generator, of the CPU and of a GPU."""
        self._set(before)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        before = self._current()
        self._set(self.states)
        try:
            yield
        finally:
            self.states = self._current()
            self._set(before)

    def _current(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self._device)
