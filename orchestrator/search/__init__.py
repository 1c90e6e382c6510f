"""Which points of which space are tried: pure functions of the sweep."""

from orchestrator.search.proposer import design, propose
from orchestrator.search.space import SEARCH_SPACES, Entry, known_spaces, load_space, space_from

__all__ = [
    "SEARCH_SPACES",
    "Entry",
    "design",
    "known_spaces",
    "load_space",
    "propose",
    "space_from",
]
