"""The gradient noise scale, for any training loop. Needs torch, and neither Ray nor a sweep.

from orchestrator.noise import NoiseScale
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.noise.loop import NoiseScale

__all__ = ["NoiseScale"]


def __getattr__(name: str) -> Any:
    if name == "NoiseScale":
        # Imported here, since code that only reads measurements needs no torch.
        from orchestrator.noise.loop import NoiseScale

        return NoiseScale
    raise AttributeError(f"module 'orchestrator.noise' has no attribute {name!r}")
