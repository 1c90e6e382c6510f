# `make sweep` runs the quickstart; `make test` the tests. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
# Two at a time: much of it is waiting for processes to come up.
PYTEST := $(BIN)/python -m pytest -n 2

.PHONY: setup sweep test test-slow test-cluster lint bench

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

sweep: setup
	$(BIN)/orchestrate sweep

test: setup
	$(PYTEST) --dist loadfile --no-loadscope-reorder

test-slow: setup
	$(PYTEST) --dist worksteal -m slow

test-cluster: setup
	$(PYTEST) --dist loadfile -m cluster

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	for script in $(filter-out benchmarks/archive.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done
