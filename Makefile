# What one does with this project. Each target sets up what it needs, and no more, and says how long that took.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAB := $(VENV)/.installed-lab
DEV := $(VENV)/.installed
DOCS := $(VENV)/.installed-docs

# Containers often forbid Python to keep what it compiles. Tests start hundreds of processes, each of which would
# then compile torch's sources anew: four seconds where one is enough.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-slow lint bench docs notebooks package package-from-index clean

help:
	@echo "make demo       where SSO wins and where it does not, in a minute; writes a report"
	@echo "make test       run the tests and doctests (PYTEST_ARGS=... adds options)"
	@echo "make test-slow  run the long tests, which make test leaves out"
	@echo "make docs       build the site into docs/_build/html, warnings as errors"
	@echo "make notebooks  write the five notebooks anew from the gallery, executed"
	@echo "make setup      create .venv and install everything for development (seconds when nothing changed)"
	@echo "make lint       ruff and mypy"
	@echo "make package    build wheel and sdist, and use the core and each extra in environments of their own"
	@echo "make package-from-index   the same with all that pip downloads, for any interpreters (an hour)"
	@echo "make bench      the performance claims, measured (a few minutes; results in benchmarks/results)"

# $(call install,EXTRA,STAMP,WHAT,OPTIONS): into .venv, with a word before and a word after
define install
	@test -x $(BIN)/python || { echo "Creating $(VENV) …"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $(3) into $(VENV); the first time this takes a while, most of it for PyTorch …"
	@began=$$(date +%s); \
	$(BIN)/python .ci/install.py $(1) $(4) \
	&& touch $(2) \
	&& echo "Installed in $$(( $$(date +%s) - began )) s: $$(du -sm $(VENV) | cut -f1) MB."
endef

setup: $(DEV)

# Whoever has everything has what the demo needs.
$(LAB): pyproject.toml constraints.txt
	$(if $(wildcard $(DEV)),@touch $@,$(call install,lab,$@,what the demo needs,--compile))

# 340 MB of Python are installed for development, of which a few modules are ever imported: these are compiled then.
$(DEV): pyproject.toml constraints.txt
	$(call install,dev,$@,everything for development)

$(DOCS): pyproject.toml constraints.txt
	$(call install,docs,$@,what builds the site)

demo: $(LAB)
	@$(BIN)/targetopt demo

test: $(DEV)
	@began=$$(date +%s); \
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS); code=$$?; \
	echo "The tests took $$(( $$(date +%s) - began )) s."; exit $$code

test-slow: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow $(PYTEST_ARGS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

notebooks: $(DOCS)
	$(BIN)/python examples/notebooks.py

package: $(DEV)
	$(BIN)/python .ci/package.py

# PACKAGE_ARGS="--python python3.12 --python python3.13 lab rl" takes other interpreters, or some extras alone.
package-from-index: $(DEV)
	$(BIN)/python .ci/package.py --from-index $(PACKAGE_ARGS)

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis
