"""Running trials on Ray: the only place that imports it."""

import os

# Ray listens on all interfaces; the token is what keeps strangers out. Ray reads both settings
# once, when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from orchestrator.cluster.connect import connect
from orchestrator.cluster.machines import Cluster, described_in, places_for
from orchestrator.cluster.run import run_trials
from orchestrator.cluster.tracking import Trackers, check_trackers

__all__ = [
    "Cluster",
    "Trackers",
    "check_trackers",
    "connect",
    "described_in",
    "places_for",
    "run_trials",
]
