# Everyday targets. `make help` lists them; each sets up what it needs.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PROJECTS := pyproject.toml airflow_provider_memq/pyproject.toml

# A registry under load answers slowly; uv's own limit of 30 s gives up too soon.
export UV_HTTP_TIMEOUT ?= 180

# What both distributions need of others; the one needs the other at its own version.
COMPILE := $(BIN)/uv pip compile $(PROJECTS) --all-extras --group dev --universal \
	--python-version 3.11 --excludes <(echo memq) \
	--custom-compile-command "make requirements" --quiet --output-file requirements.txt

.PHONY: help setup requirements test test-unit check lint format chaos simulate crashes fuzz mutants upgrade soak bench dist demo demo-cluster demo-restore docs clean

help: ## Show these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) ## Make .venv with the pinned packages and this project (done once)

# The stamp is written last, so a set-up that was cut short runs again. `uv pip sync` makes the
# environment equal to the pins: it also removes what is no longer listed. It compiles, for where
# Python may not write bytecode, as in many containers, every process would do it again.
$(INSTALLED): $(PROJECTS) requirements.txt
	@start=$$SECONDS
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "memq needs Python 3.11 or later: set PYTHON=python3.11" >&2; exit 1; }
	echo "setup: 0 s: .venv, with $$($(PYTHON) --version)"
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	echo "setup: $$((SECONDS - start)) s: the $$(grep -c '^[^ #]' requirements.txt) packages pinned in requirements.txt"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.txt uv
	$(BIN)/uv pip sync --compile-bytecode --quiet --python $(BIN)/python requirements.txt
	echo "setup: $$((SECONDS - start)) s: this folder as memq and airflow-provider-memq, so that changes need no reinstall"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(foreach each,$(PROJECTS),--editable $(dir $(each)))
	touch $@
	echo "setup: done in $$((SECONDS - start)) s; the command is $(BIN)/memq"

requirements: $(INSTALLED) ## Pin what pyproject.toml asks for; UPGRADE=1 takes the newest
	$(COMPILE) $(if $(UPGRADE),--upgrade)

test: $(INSTALLED) ## Run the whole test suite, in three processes; ARGS="-k name" is for pytest
	$(BIN)/python -m $(if $(ARGS),pytest $(ARGS),tests)

test-unit: $(INSTALLED) ## Run the quick tests, which need no service
	$(BIN)/python -m pytest -n 3 tests/unit $(ARGS)

check: lint test-unit ## What to run before each commit: make lint, make test-unit

lint: $(INSTALLED) ## Check style, formatting, types, and what is in deploy/
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.harness.deploy

format: $(INSTALLED) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

chaos: $(INSTALLED) ## Kill brokers while producers write, and check; RUNS=200 SEED=random STORAGE=s3 QUEUE=kafka CLUSTER=3 SECURE=1
	$(BIN)/python -m tests.system.chaos --runs $(or $(RUNS),200) $(if $(SEED),--seed $(SEED)) \
		$(if $(STORAGE),--storage $(STORAGE)) $(if $(QUEUE),--queue $(QUEUE)) \
		$(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(SECURE),--secure)

simulate: $(INSTALLED) ## Faults of all kinds in simulated time, and check; SEEDS=200 SEED=7 MINUTES=m
	$(BIN)/python -m tests.simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

crashes: $(INSTALLED) ## Power cuts at each step of files, and take-overs in Kafka; PLANS=20 STATES=10
	MEMQ_CRASH_PLANS=$(or $(PLANS),20) MEMQ_CRASH_STATES=$(or $(STATES),10) $(BIN)/python -m pytest \
		-n 2 tests/simulation/test_crash_*.py tests/simulation/test_kafka_owners.py $(ARGS)

fuzz: $(INSTALLED) ## Send hostile frames to a broker, and check; FRAMES=1000000 SEED=random
	$(BIN)/python -m tests.system.fuzz --frames $(or $(FRAMES),1000000) $(if $(SEED),--seed $(SEED))

mutants: $(INSTALLED) ## Plant bugs one by one; each must be caught; ARGS=NAME, or ROOM=client/consumer COUNT=20 SEED=7
	$(BIN)/python -m $(if $(ROOM),tests.mutants.generated $(ROOM) $(if $(COUNT),--count $(COUNT)) \
		$(if $(SEED),--seed $(SEED)),tests.mutants.planted) $(ARGS)

upgrade: $(INSTALLED) ## Old clients, new broker and back; upgrade, write, downgrade, read; REV=revision, newest tag
	$(BIN)/python -m tests.system.upgrade $(if $(REV),--rev $(REV))

soak: $(INSTALLED) ## Airflow, Spark and brokers that are killed while producers write, and check
	$(BIN)/python -m tests.system.airflow.soak $(ARGS)

bench: $(INSTALLED) ## Run the benchmarks and print their figures
	$(BIN)/python -m benchmarks $(ARGS)

dist: $(INSTALLED) ## Build both wheels and source distributions into dist/, and try them; TRY=0 only builds
	@rm -rf dist
	$(BIN)/python -m tests.system.distributions dist $(if $(filter 0,$(TRY)),--only-build)
	echo "install them with: pip install $$(echo dist/*.whl)"

demo: $(INSTALLED) ## Run the main job from end to end; INPUT=file your own lines, SECURE=1, KEEP=1 goes on
	$(BIN)/python -m demo $(if $(INPUT),--input "$(INPUT)") $(if $(SECURE),--secure) $(if $(KEEP),--keep)

demo-cluster: $(INSTALLED) ## Run the job on a cluster whose brokers and services fail; six minutes; SECURE=1
	$(BIN)/python -m demo.cluster $(if $(SECURE),--secure)

demo-restore: $(INSTALLED) ## Lose all of a cluster but its bucket, restore it, and check; SECURE=1
	$(BIN)/python -m demo.cluster --restore $(if $(SECURE),--secure)

docs: $(INSTALLED) ## Write what is generated from the code: reference pages, alerts, dashboard
	$(BIN)/python -m docs.generate.configuration docs/configuration.md
	$(BIN)/python -m docs.generate.protocol docs/protocol.md
	$(BIN)/python -m docs.generate.metrics docs/metrics.md
	$(BIN)/memq generate alerts deploy/prometheus/memq.rules.yaml
	$(BIN)/memq generate grafana deploy/grafana/memq.json
	$(BIN)/python -m docs.generate.cost docs/cost.md

clean: ## Remove .venv, caches and build output; data in memq-data stays
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .services build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
