# The five things one does with this project. Each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint bench clean

help:
	@echo "make setup  create .venv and install everything (seconds when nothing changed)"
	@echo "make demo   compare SSO and its rivals on embedded data; writes a report"
	@echo "make test   run the tests and doctests (PYTEST_ARGS=... adds options)"
	@echo "make lint   ruff and mypy"
	@echo "make bench  the performance claims, measured (a few minutes; results in benchmarks/results)"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/targetopt demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
