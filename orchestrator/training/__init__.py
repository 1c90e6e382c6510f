"""Trains trials. This package uses torch, but not Ray."""

from orchestrator.training.checkpoint import Checkpoint, States
from orchestrator.training.entry import Task
from orchestrator.training.loop import Left, train, train_on_ranks
from orchestrator.training.optimizers import accepted_by, is_built_in
from orchestrator.training.pack import time_alone, train_in_stack, train_pack
from orchestrator.training.ranks import (
    Ranks,
    gpus_here,
    listen_at,
    of_others,
    one_thread,
    open_ranks,
)
from orchestrator.training.rehearsal import rehearse
from orchestrator.training.same_bits import ask_for_same_bits
from orchestrator.training.settings import GENERAL, check_metaparameters
from orchestrator.training.trainer import MADE

# This must come before the first matrix product in this process: MKL reads the setting only once.
ask_for_same_bits()
