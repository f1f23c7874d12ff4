# `make demo`, `make bench` and `make test` set up all that they need the first time, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo bench test lint types clean

help:
	@echo "make demo    the webhook inbox, with its workers killed: ARGS='--deliveries 20000' and so on"
	@echo "make bench   each call beside psycopg written by hand: ARGS='--only get,update', ARGS='--peers' and so on"
	@echo "make test    the test suite: ARGS='-k fenced' and so on"
	@echo "make lint    ruff"
	@echo "make types   mypy, strict"
	@echo "make clean   remove what was set up"

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nl2state needs Python 3.11 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/nl2state demo $(ARGS)

bench: $(VENV)/.ready
	@$(BIN)/python -m tests.benchmarks $(ARGS)

test: $(VENV)/.ready
	@$(BIN)/python -m pytest -n 2 $(ARGS)

lint: $(VENV)/.ready
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.ready
	@$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VENV)-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
