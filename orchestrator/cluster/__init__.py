"""Runs trials on Ray. No other package imports Ray."""

import os

# Ray listens on all interfaces, so only the token keeps strangers out. Ray reads both settings
# once, when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
