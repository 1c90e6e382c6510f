"""Decides which points of a search space are trained, in which order, and which trials can no
longer win. All of it is a pure function of the sweep and of the results of its trials."""

from orchestrator.search.branching import Branching, Fork
from orchestrator.search.proposer import DESIGNS, MOST_POINTS, check_algorithm, even_axes, grid
from orchestrator.search.queue import STOPPED, AnySearch, Director, Queue
from orchestrator.search.race import Bounds, PackRace, Proposal, ending, result_of
from orchestrator.search.rounds import StudySearch
from orchestrator.search.space import (
    LONGEST_TEXT,
    SEARCH_SPACES,
    Entry,
    assemble,
    check_value,
    distinct,
    known_spaces,
    load_space,
    space_from,
)
