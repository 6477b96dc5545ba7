# The commands of this repository. Each one first makes sure that .venv matches requirements.lock; nothing else is needed.
#
#   make quickstart   the whole road on this machine: text in, curves and Hugging Face checkpoints out
#   make test         every test that needs no GPU and no half hour
#   make test-long    those that take longer: it learns, on real text
#   make test-gpu     those that need a CUDA device
#   make lint         ruff (rules and format) and mypy
#   make format       let ruff rewrite the files
#   make clean        remove caches, not .venv and not runs/
#
# PYTHON=/path/to/python3.12 chooses the interpreter that .venv is made from.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
BIN := .venv/bin
READY := .venv/.installed
PACKAGES := data_prep training cluster pipeline

.PHONY: help install quickstart test test-long test-gpu lint format clean

help:
	@sed -n '3,9s/^#   //p' Makefile

install: $(READY)

# A failed or interrupted installation leaves no stamp, so the next call takes up where it stopped.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "electra: $(PYTHON) is missing or older than Python 3.11; install Python 3.11 or say 'make PYTHON=/path/to/python3.11'." >&2; exit 3; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (2.7 GB with the CPU build of torch; two to five minutes) ..."
	$(BIN)/pip install --disable-pip-version-check -qq -r requirements.lock
	$(BIN)/pip install --disable-pip-version-check -qq --no-deps --no-build-isolation -e .
	@touch $@

quickstart: $(READY)
	$(BIN)/electra quickstart

# One thread a process: the tests start several processes, and spinning OpenMP threads on shared cores are many times slower.
# ELECTRA_TEST_DATA points the tests at real data sets where they lie beside the repository; without it those tests skip.
test test-long test-gpu: export OMP_NUM_THREADS := 1
test test-long: export ELECTRA_TEST_DATA ?= $(realpath ../shared/data)
# Two files at a time, in order, so that the long ones begin first: much of their time is waiting for processes to start.
test: $(READY)
	$(BIN)/python -m pytest -m "not gpu and not long" -n 2 --dist loadfile --no-loadscope-reorder

test-long: $(READY)
	$(BIN)/python -m pytest -m "not gpu and long" -s

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu tests/gpu

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
