# `make help` lists the targets. Everything runs in .venv, which `make install` makes; nothing outside the checkout is changed.

# The first of these that is there; `make PYTHON=…` says another.
PYTHON ?= $(firstword $(foreach each,python3.11 python3.12 python3.13 python3.14 python3,$(if $(shell command -v $(each)),$(each))))
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One more than there are cores, for many tests wait for processes and sockets more than they compute; four at the most.
ifndef WORKERS
WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 1); if [ $$n -lt 4 ]; then echo $$((n + 1)); else echo 4; fi)
# Few of these start a program that computes beside them, and of `test` more than half of a worker's time is waiting.
test: WORKERS := $(shell echo $$(($(WORKERS) + 2)))
test-services test-long test-zookeeper: WORKERS := $(shell echo $$(($(WORKERS) + 1)))
endif
TESTED := tests/unit tests/scenarios tests/chaos tests/simulation tests/security tests/paper
# Ottla's own client, what stands upon it, and the takeover: nearly half of the time.
SERVICES := $(addprefix tests/unit/,wire client schema_registry mirror_maker audit_counter spark takeover)
PROTOS := $(sort $(wildcard proto/ottla/rpc/v1/*.proto))
PROTO_INTO ?= services
PINNED := --generate-hashes --python-version 3.11 --python-platform linux --custom-compile-command 'make requirements'

.DEFAULT_GOAL := help
# How a person's own cluster in containers is called; PROFILES=ensemble,observability adds to it.
export COMPOSE_PROJECT_NAME ?= $(or $(shell sed -nE "s/^COMPOSE_PROJECT_NAME=[\"']?([^\"'[:space:]]*).*/\1/p" .env 2>/dev/null),ottla)
export PROFILES
# Where an environment keeps Python from writing bytecode, each of some hundred processes of the tests would compile everything.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install quickstart stop test test-services test-long test-zookeeper compat chaos chaos-sabotage sim sim-sabotage bench attack fuzz sbom golden docs house rules dashboards helm-test k8s-test proto lint format clean base-image images requirements wheels up down logs ps demo integration spark-test spark-kills spark-demo

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## make .venv and install Ottla in it, with what tests and the quickstart need

$(INSTALLED): pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Ottla needs Python 3.11 or later; say where it is: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "On Debian and Ubuntu, 'venv' is a package of its own: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@echo "Installing Ottla and what its tests need into $(VENV), some 900 MB: the first time this takes minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,quickstart]'
	@touch $@

quickstart: $(INSTALLED) ## start Ottla in the background and put 336,776 flights through it
	$(BIN)/ottla quickstart

stop: $(INSTALLED) ## stop what the quickstart left running
	$(BIN)/ottla quickstart --stop

up: ## a cluster in containers: build what is missing, start it, wait until it is healthy; PROFILES=ensemble,observability
	@sh deploy/compose.sh up

down: ## stop that cluster and keep its data; VOLUMES=1 removes the data too
	@sh deploy/compose.sh down $(if $(VOLUMES),--volumes)

logs: ## follow its logs; SERVICE=broker-1
	@sh deploy/compose.sh logs $(SERVICE)

ps: ## what of it runs
	@sh deploy/compose.sh ps

images: ## build the images of the cluster; PROFILES=spark builds that one too
	@sh deploy/images.sh

base-image: ## make the image that they stand on from Debian's packages, where none can be pulled (as root, needs mmdebstrap)
	@sh deploy/base/build.sh

wheels: $(INSTALLED) ## put what the images install from the network into deploy/wheels, for building without one
	@for each in requirements requirements-registry requirements-spark requirements-build; do $(BIN)/python -m pip download --quiet --disable-pip-version-check \
		--only-binary=:all: --no-binary=pyspark --no-deps --python-version 3.11 --require-hashes --dest deploy/wheels -r services/$$each.txt || exit 1; done

requirements: $(INSTALLED) ## update the pins, with hashes, of what the images install
	$(BIN)/uv pip compile --quiet --upgrade $(PINNED) --extra server --extra audit pyproject.toml -o services/requirements.txt
	$(BIN)/uv pip compile --quiet --upgrade $(PINNED) --extra server --extra audit --extra registry --constraint services/requirements.txt \
		$$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' services/requirements.txt) pyproject.toml -o services/requirements-registry.txt
	$(BIN)/uv pip compile --quiet --upgrade $(PINNED) --extra server --extra audit --extra spark --constraint services/requirements.txt \
		$$(sed -n 's/^\([a-z0-9-]*\)==.*/--no-emit-package \1/p' services/requirements.txt) pyproject.toml -o services/requirements-spark.txt
	echo 'setuptools>=75' | $(BIN)/uv pip compile --quiet --upgrade $(PINNED) - -o services/requirements-build.txt

# Pytest rewrites what tests assert, and keeps it. Workers that begin together would each rewrite all of it, so it is done once before.
REWRITTEN := $(VENV)/.rewritten
$(REWRITTEN): $(INSTALLED)
	@$(BIN)/python -m pytest --collect-only -qq tests/unit/[a-c]* >/dev/null 2>&1 & \
		$(BIN)/python -m pytest --collect-only -qq $(filter-out tests/unit,$(TESTED)) tests/unit/[d-z]* >/dev/null 2>&1; wait
	@touch $@

# A worker takes whole stretches of tests, so that most files are run by one, which imports and parses once what they need.
test: $(INSTALLED) $(REWRITTEN) ## the log, the broker, coordination and commands: needs nothing but this checkout, and less than two minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not long and not zookeeper' $(addprefix --ignore=,$(SERVICES)) $(TESTED)
	@echo "Left out: client and services (make test-services), what needs Java for a real ZooKeeper (make test-zookeeper), proofs at length (make test-long)."

test-services: $(INSTALLED) $(REWRITTEN) ## those of the client, schema registry, mirror, audit counter, Spark's loads and takeover, which need as little
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not long and not zookeeper' $(SERVICES)

test-long: $(INSTALLED) ## proofs at length that `make test` leaves out, and every property with more examples than it has there
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'long or hypothesis' --hypothesis-profile long $(TESTED)

test-zookeeper: $(INSTALLED) ## those that start a real ZooKeeper, which need Java
	$(BIN)/python -m pytest -n $(WORKERS) -m zookeeper $(TESTED)

compat: $(INSTALLED) ## real clients against a real broker: librdkafka, kafka-python, aiokafka, kcat
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/compat

# pyspark has no wheel: pip builds one from 456 MB, once, and keeps it. Java 17 must be there.
SPARK := $(BIN)/python -c 'import pyspark, deltalake, polars, duckdb, pandas, matplotlib' 2>/dev/null \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,quickstart,spark-test]'

spark-test: $(INSTALLED) ## real Spark sessions: the source, loads into Delta tables; installs pyspark, and needs Java 17
	@$(SPARK)
	$(BIN)/python -m pytest tests/spark

spark-kills: $(INSTALLED) ## loads and streams of Spark whose processes are killed, and faults around them; SEED=n, COUNT=m of each kind, 50 if none is given
	@$(SPARK)
	OTTLA_KILLS_SEED=$(or $(SEED),19) OTTLA_KILLS_COUNT=$(or $(COUNT),50) $(BIN)/python -m pytest tests/spark/test_kills.py tests/spark/test_faults.py

spark-demo: $(INSTALLED) ## the quickstart, and its flights by Spark into a Delta table and a plot of their delays; installs as spark-test does
	@$(SPARK)
	$(BIN)/ottla quickstart --spark

# What needs Python beside Docker runs in a container that has both, where this machine has Docker alone.
ifneq ($(shell $(or $(PYTHON),false) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),)
demo: $(INSTALLED) ## 336,776 flights through that cluster while the leader's container is killed; none may be lost
	$(BIN)/python -m tests.integration.demo

integration: $(INSTALLED) images ## clusters in containers under faults, seen from outside by real clients; leaves nothing running
	$(BIN)/python -m pytest -p no:cacheprovider tests/integration
else
demo integration:
	@sh deploy/development/run.sh make VENV=.development/venv $@
endif

chaos: $(INSTALLED) ## three brokers and a real ZooKeeper under faults, judged by what clients saw; SEED=n MINUTES=m AUDIT=1
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(AUDIT),--audit)

chaos-sabotage: $(INSTALLED) ## the same with brokers that are broken on purpose: each must be found out
	$(BIN)/python -m tests.chaos.sabotage

sim: $(INSTALLED) ## a cluster in one process under a virtual clock, a network and disks that fail by chance; SEED=n COUNT=m PROFILE=name
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(PROFILE),--profile $(PROFILE))

sim-sabotage: $(INSTALLED) ## the same with brokers that are broken on purpose: each must be found out
	$(BIN)/python -m tests.simulation --count 300 --sabotage all

bench: $(INSTALLED) ## throughput, latency and memory against bare floors measured in the same run; a table and a JSON file
	$(BIN)/python -m tests.bench

attack: $(INSTALLED) ## what a hostile client, neighbour or caller may try, against brokers of its own; each must fail; ONLY=cost
	PYTHONPATH=. $(BIN)/python -m tests.security $(ONLY)

fuzz: $(INSTALLED) ## inputs by chance over the wire and on the disk, for eight minutes; SEED=n SECONDS=s
	PYTHONPATH=. $(BIN)/python -m tests.security.fuzz_wire --seconds $(or $(SECONDS),480) $(if $(SEED),--seed $(SEED))

sbom: $(INSTALLED) ## what the images install, as CycloneDX; INTO=file
	$(BIN)/python -m deploy.sbom $(INTO)

golden: $(INSTALLED) ## rewrite the expected transcripts; commit only what you understand
	OTTLA_GOLDEN=1 $(BIN)/python -m pytest -q tests/scenarios

docs: $(INSTALLED) ## regenerate docs/configuration.md, docs/metrics.md, the chart's tables and the picture in ARCHITECTURE.md
	$(BIN)/python -m ottla.config.document docs/configuration.md
	PYTHONPATH=. $(BIN)/python -m tests.house --rooms
	$(BIN)/python -m ottla.metrics.document docs/metrics.md
	$(BIN)/python helm/document.py

house: $(INSTALLED) ## figures of the tree: files, importers, layers, and what a Produce and a CreateTopics walk through; WAYS=1
	PYTHONPATH=. $(BIN)/python -m tests.house $(if $(WAYS),--ways)

rules: ## Prometheus' configuration and alert rules: checked and tested with promtool
	sh deploy/prometheus/check.sh

dashboards: $(INSTALLED) ## regenerate deploy/grafana/dashboards
	$(BIN)/python -m deploy.grafana.generate

helm-test: $(INSTALLED) ## the chart as helm renders it: its schema, its promises, every release of Kubernetes from 1.25 on; no cluster
	$(BIN)/python -m pytest -n $(WORKERS) tests/helm

k8s-test: $(INSTALLED) ## the chart in the cluster that KUBECONFIG names: install, faults, upgrade, scale, uninstall; minutes
	$(BIN)/python -m pytest -p no:cacheprovider -v -s tests/kubernetes

proto: $(INSTALLED) ## regenerate services/ottla/rpc/v1 from proto/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
		--python_out=$(PROTO_INTO) --mypy_out=quiet:$(PROTO_INTO) $(PROTOS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
		--grpc_python_out=$(PROTO_INTO) --mypy_grpc_out=quiet:$(PROTO_INTO) $(shell grep -l '^service ' $(PROTOS))

lint: $(INSTALLED) ## ruff, mypy --strict, the layers and what the house holds itself to
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -qq tests/test_tidy.py

format: $(INSTALLED) ## ruff's formatting and its safe corrections
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove .venv and everything that was made; stop the quickstart first
	rm -rf $(VENV) .development .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .bench .chaos .quickstart
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf services/*.egg-info
