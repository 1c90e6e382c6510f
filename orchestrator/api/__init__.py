"""The door from Python: what `orchestrate` does, from a notebook or a script."""
