"""What a run keeps on disk, and the frontier read from it."""

from orchestrator.results.frontier import FrontierRow, frontier_of, write_frontier
from orchestrator.results.store import Run

__all__ = ["FrontierRow", "Run", "frontier_of", "write_frontier"]
