# `make help` lists the targets. Everything runs in .venv, which `make install` makes; nothing outside the checkout is changed.

# The first of these that is there; `make PYTHON=…` says another.
PYTHON ?= $(firstword $(foreach each,python3.11 python3.12 python3.13 python3.14 python3,$(if $(shell command -v $(each)),$(each))))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Two workers even on one core: several tests wait for processes and sockets more than they compute.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); if [ $$n -lt 2 ]; then echo 2; elif [ $$n -gt 4 ]; then echo 4; else echo $$n; fi)
PROTOS := $(sort $(wildcard proto/ottla/rpc/v1/*.proto))
PROTO_INTO ?= services

.DEFAULT_GOAL := help
.PHONY: help install quickstart stop test compat chaos chaos-sabotage sim bench golden docs proto lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv and install Ottla in it, with what tests and the quickstart need

$(INSTALLED): pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Ottla needs Python 3.11 or later; say where it is: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "On Debian and Ubuntu, 'venv' is a package of its own: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,quickstart]'
	@touch $@

quickstart: $(INSTALLED) ## start Ottla in the background and put 336,776 flights through it
	$(BIN)/ottla quickstart

stop: $(INSTALLED) ## stop what the quickstart left running
	$(BIN)/ottla quickstart --stop

test: $(INSTALLED) ## the tests that need nothing but this checkout, in under two minutes
	$(BIN)/python -m pytest -n $(WORKERS) tests/unit tests/scenarios tests/chaos tests/simulation tests/paper tests/test_tidy.py

compat: $(INSTALLED) ## real clients against a real broker: librdkafka, kafka-python, aiokafka, kcat
	$(BIN)/python -m pytest -n $(WORKERS) tests/compat

chaos: $(INSTALLED) ## three brokers and a real ZooKeeper under faults, judged by what clients saw; SEED=n MINUTES=m
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

chaos-sabotage: $(INSTALLED) ## the same with brokers that are broken on purpose: each must be found out
	$(BIN)/python -m tests.chaos.sabotage

sim: $(INSTALLED) ## a cluster in one process under a virtual clock, a network and disks that fail by chance; SEED=n COUNT=m
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT))

bench: $(INSTALLED) ## throughput, latency and memory against bare floors measured in the same run; a table and a JSON file
	$(BIN)/python -m tests.bench

golden: $(INSTALLED) ## write the expected transcripts anew; commit only what you understand
	OTTLA_GOLDEN=1 $(BIN)/python -m pytest -q tests/scenarios

docs: $(INSTALLED) ## make docs/configuration.md anew from the declarations
	$(BIN)/python -m ottla.config.document docs/configuration.md

proto: $(INSTALLED) ## make services/ottla/rpc/v1 anew from proto/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
		--python_out=$(PROTO_INTO) --mypy_out=quiet:$(PROTO_INTO) $(PROTOS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
		--grpc_python_out=$(PROTO_INTO) --mypy_grpc_out=quiet:$(PROTO_INTO) $(shell grep -l '^service ' $(PROTOS))

lint: $(INSTALLED) ## ruff, mypy --strict and the layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## ruff's formatting and its safe corrections
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv and everything that was made; stop the quickstart first
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .bench .chaos .quickstart
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf services/*.egg-info
