# make demo     everything set up, then one prompt through a whole stack (no GPU needed)
# make test     everything set up, then unit tests and the engine tests
# make test-cluster  the operator and the chart on a real Kubernetes, which it builds and starts (as root)
# make help     the other targets

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
STAMP := .venv/.plait-setup
PYTEST := $(BIN)/pytest
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Unit tests that start the router as a process.
PROCESS_TESTS := $(addprefix tests/unit/router/,test_server.py processes/test_supervisor.py)

# Unit tests with time limits need the machine alone; the others share it, two processes of one thread each.
ROOMS_WITH_LIMITS := tests/unit/peer tests/unit/router tests/unit/stack
ALONE := $(ROOMS_WITH_LIMITS)
TOGETHER := tests/unit $(addprefix --ignore=,$(ROOMS_WITH_LIMITS)) --numprocesses=2
# What PYTEST_ARGS selects may all be in one of the two runs; without it, a run that finds no test fails.
NONE_MAY_FIT = $(if $(PYTEST_ARGS),|| [ $$? -eq 5 ])

.PHONY: help setup demo test test-unit test-full test-router-compiled bench-router soak-router \
  cluster-programs test-cluster test-cluster-full soak-cluster lint types layers clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup      .venv with the pinned versions; does nothing when up to date'
	@echo 'make demo       setup, then a tiny model, a stack, one streamed chat, and the figures'
	@echo 'make test       setup, then unit, router and engine tests      (PYTEST_ARGS=... passes flags)'
	@echo 'make test-unit  setup, then unit tests alone'
	@echo 'make test-full  setup, then the whole matrix of engine tests too'
	@echo 'make test-router-compiled  the conformance suite and the fault table on a router compiled as in an image'
	@echo 'make bench-router  the router beside sglang-router, 8 minutes, on two quiet cores  (BENCH_ARGS=--quick: 1)'
	@echo 'make soak-router   1,000 streams for 5 minutes'
	@echo 'make test-cluster  operator and chart on a real Kubernetes: builds it once (10 minutes), starts, tests, stops'
	@echo 'make test-cluster-full  the same with every fault and scale'
	@echo 'make soak-cluster  churn for half an hour, memory watched'
	@echo 'make lint       ruff: rules and format'
	@echo 'make types      mypy --strict'
	@echo 'make layers     who may import whom'
	@echo 'make clean      removes .venv and .plait'

setup: $(STAMP)

$(STAMP): constraints.txt pyproject.toml tools/setup.sh
	@tools/setup.sh

demo: $(STAMP)
	@$(BIN)/plait demo

test: $(STAMP)
	@OMP_NUM_THREADS=1 $(PYTEST) $(TOGETHER) -m 'not full and not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)
	@$(PYTEST) $(ALONE) tests/router tests/engine -m 'not full and not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)

test-unit: $(STAMP)
	@OMP_NUM_THREADS=1 $(PYTEST) $(TOGETHER) -m 'not full and not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)
	@$(PYTEST) $(ALONE) -m 'not full and not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)

test-full: $(STAMP)
	@OMP_NUM_THREADS=1 $(PYTEST) $(TOGETHER) -m 'not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)
	@$(PYTEST) $(ALONE) tests/router tests/engine -m 'not gpu' $(PYTEST_ARGS) $(NONE_MAY_FIT)

# Two steps: a build that fails must not be taken for a router of the checkout.
test-router-compiled: $(STAMP)
	@python=$$($(BIN)/python -m bench.router.lean) && ROUTER_PYTHON=$$python $(PYTEST) tests/router $(PROCESS_TESTS) $(PYTEST_ARGS)

bench-router: $(STAMP)
	@$(BIN)/python -m bench.router.run $(BENCH_ARGS)

soak-router: $(STAMP)
	@$(BIN)/python -m bench.router.soak $(BENCH_ARGS)

# The first step may build for ten minutes and says so; the second has time limits for each test.
cluster-programs: $(STAMP)
	@$(BIN)/python -m tests.cluster.harness binaries > /dev/null

test-cluster: cluster-programs
	@$(BIN)/python -m tests.cluster.harness guard $(PYTEST) tests/cluster -m 'not full and not soak' $(PYTEST_ARGS)

test-cluster-full: cluster-programs
	@$(BIN)/python -m tests.cluster.harness guard $(PYTEST) tests/cluster -m 'not soak' $(PYTEST_ARGS)

soak-cluster: cluster-programs
	@$(BIN)/python -m tests.cluster.harness guard $(PYTEST) tests/cluster -m soak $(PYTEST_ARGS)

# Without ruff's cache: it does not see that a new module changes what an import is elsewhere.
lint: $(STAMP)
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .

types: $(STAMP)
	@$(BIN)/mypy

layers: $(STAMP)
	@$(BIN)/lint-imports

clean:
	rm -rf .venv .plait
