"""Models of the studies, as plain functions from sizes to modules."""

from orchestrator.workloads.models.small import fully_connected, lenet, simple_cnn

__all__ = ["fully_connected", "lenet", "simple_cnn"]
