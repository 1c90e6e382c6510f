"""What the frontier says: pure functions on numbers."""

from orchestrator.analysis.scaling import Estimate, Scaling, scaling_of, scalings

__all__ = ["Estimate", "Scaling", "scaling_of", "scalings"]
