"""Running trials on Ray: the only place that imports it."""

import os

# Ray listens on all interfaces; the token is what keeps strangers out. Ray reads both settings
# once, when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from orchestrator.cluster.connect import Cluster, connect, places_for
from orchestrator.cluster.run import run_trials

__all__ = ["Cluster", "connect", "places_for", "run_trials"]
