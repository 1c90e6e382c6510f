"""The training of one trial: torch only, no Ray."""

from orchestrator.training.loop import follow, metric_names, train, train_on_ranks
from orchestrator.training.lr_schedules import (
    SCHEDULE_SETTINGS,
    check_schedule,
    make_schedule,
)
from orchestrator.training.optimizers import OPTIMIZERS, check_metaparameters
from orchestrator.training.ranks import Ranks, free_port, open_ranks

__all__ = [
    "OPTIMIZERS",
    "SCHEDULE_SETTINGS",
    "Ranks",
    "check_metaparameters",
    "check_schedule",
    "follow",
    "free_port",
    "make_schedule",
    "metric_names",
    "open_ranks",
    "train",
    "train_on_ranks",
]
