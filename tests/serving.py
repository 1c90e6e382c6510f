"""What rank 1 of a pair runs. It imports no more than training needs, so that it is soon there."""

from orchestrator.training import Ranks
from orchestrator.training.loop import follow
from orchestrator.training.same_bits import ask_for_same_bits

ask_for_same_bits()


def serve(ranks: Ranks) -> None:
    """Trains the same trials as rank 0 until it is told to stop."""
    while (job := ranks.from_first(None)) is not None:
        follow(ranks, *job)
