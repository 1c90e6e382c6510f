"""Running trials on Ray: the only place that imports it.

Nothing is imported here: each of Ray's processes loads what it needs, before the first trial."""

import os

# Ray listens on all interfaces; the token is what keeps strangers out. Ray reads both settings
# once, when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
