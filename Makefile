# The same commands run here and in CI (.ci/run). Each sets up .venv first; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
# Two at a time: much of it is waiting for processes to come up.
PYTEST := $(BIN)/python -m pytest -n 2
# Where bytecode isn't kept, each process compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# All files take ten seconds to import.
files_with = $(shell grep -l 'mark.$(1)' tests/*.py)

.PHONY: setup help sweep test test-fast test-slow test-cluster lint docs reference atlas format bench

setup: .venv/installed  ## create .venv with the versions of constraints.txt (the default target)

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	@# The pip of an older Python takes three times as long to resolve the versions.
	$(BIN)/pip install --quiet --upgrade 'pip>=25'
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "make %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sweep: setup  ## run the quickstart: 2,000 trainings and a report
	$(BIN)/orchestrate sweep

test: setup  ## run the tests, except the slow ones and those of clusters
	$(PYTEST) --dist loadfile --no-loadscope-reorder

test-fast: setup  ## run the quick tests only, in a few minutes
	$(PYTEST) --dist worksteal -m "not slow and not cluster and not dear"

test-slow: setup  ## run the slow tests: kills, browsers, storage, installation, whole sweeps
	$(PYTEST) --dist worksteal --durations=15 -m slow $(call files_with,slow)

test-cluster: setup  ## run the tests of real clusters, on this machine
	$(PYTEST) --dist loadfile --no-loadscope-reorder -m cluster tests/test_remote.py $(call files_with,cluster)

lint: setup  ## check style and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: setup  ## build the documentation as a site, into site/; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

reference: setup  ## write the tables of sweep files, branch files, commands and the schemas anew
	$(BIN)/python docs/reference.py

atlas: setup  ## write the page of findings, and its pictures, from the runs in atlas/runs
	$(BIN)/python atlas/findings.py --write

format: setup  ## format the code, and fix what can be fixed without a person
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## run the benchmarks, which write their tables into docs/measurements/
	@missed=; for script in $(filter-out %/archive.py %/command_line.py %/tables.py,$(wildcard benchmarks/*.py)); do \
	    echo "== $$script"; $(BIN)/python $$script --write || missed="$$missed $$script"; \
	done; test -z "$$missed" || { echo "== missed a bound:$$missed"; exit 1; }
