"""The training of one trial: torch only, no Ray."""

from orchestrator.training.loop import follow, metric_names, train, train_on_ranks
from orchestrator.training.optimizers import OPTIMIZERS, check_metaparameters
from orchestrator.training.ranks import Ranks, free_port, open_ranks

__all__ = [
    "OPTIMIZERS",
    "Ranks",
    "check_metaparameters",
    "follow",
    "free_port",
    "metric_names",
    "open_ranks",
    "train",
    "train_on_ranks",
]
