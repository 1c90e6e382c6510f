"""The Python interface: the commands of `orchestrate`, for a notebook or a script."""
