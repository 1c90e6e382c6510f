"""Runs the command `orchestrate` as `python -m orchestrator.cli`."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()
