.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail

PYTHON ?= python3.11#           the interpreter that makes the virtual environment
VENV ?= .venv#                  where it goes
PYTEST_ARGS ?=#                 e.g. PYTEST_ARGS="tests/unit -k framing"
SEEDS ?= 20#                    how many scenarios `make chaos` runs
FIRST_SEED ?= 1#                its first one; SEEDS=1 FIRST_SEED=17 runs scenario 17 again
MATRIX ?= sample#               full: `make test-deep` runs all parameters of the long kill matrices
HALF ?=#                        1 or 2: `make test-deep` runs that half of its tests, as CI does on every other day
GUARD ?= on#                    off: S3 ignores the condition of creates, and the harness must find what that does
SPARK_ENV_ARGS ?=#              e.g. SPARK_ENV_ARGS="--extra my-parser.txt"
MINUTES ?= 5#                   how long `make fuzz` runs, all targets together
FUZZ_ARGS = $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(if $(BATCH),--batch $(BATCH)) $(if $(INPUT),--input $(INPUT)) $(if $(FUZZ_JSON),--json $(FUZZ_JSON))
AUDIT_ARGS ?=#                  --stored: ask no server
CHAOS_ARGS ?=#                  e.g. CHAOS_ARGS="--json report.json"

BIN := $(VENV)/bin
READY := $(VENV)/.ready

##@ Use
.PHONY: demo
demo: $(READY) ## The whole path on real input: 336,776 flights from Kafka to an Iceberg table, counted
	@$(BIN)/python -m devstack demo

.PHONY: demo-replay
demo-replay: $(READY) ## A service misses an hour of its messages, asks for it, and gets exactly that hour
	@$(BIN)/python -m devstack demo-replay

.PHONY: up
up: $(READY) ## Start Kafka, ZooKeeper, S3 and Airflow here, and leave them running
	@$(BIN)/python -m devstack up

.PHONY: down
down: $(READY) ## Stop what `make up` started
	@$(BIN)/python -m devstack down

.PHONY: spark-env
spark-env: $(READY) ## The Python environment of Spark's executors, as an archive for a cluster
	@$(BIN)/python -m devstack spark-env $(SPARK_ENV_ARGS)

##@ Develop
.PHONY: venv
venv: $(READY) ## Make the virtual environment (done by every other target when needed)

$(READY): requirements.txt requirements-dev.txt pyproject.toml
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash include/devstack/make_venv.sh
	@touch $@

.PHONY: test
test: $(READY) ## Unit, integration, fault and end-to-end tests; starts the servers it needs (PYTEST_ARGS selects)
	@$(if $(strip $(PYTEST_ARGS)),$(BIN)/python -m pytest $(PYTEST_ARGS),$(BIN)/python tests/run.py)

.PHONY: test-deep
test-deep: $(READY) ## The long ones: kill matrices (MATRIX=full: all of them), seeds, clusters, elections, many examples
	@WAYBILL_MATRIX=$(MATRIX) WAYBILL_DEEP_HALF=$(HALF) $(BIN)/python tests/run.py deep

.PHONY: chaos
chaos: $(READY) ## Kill, freeze and cut while lanes work: SEEDS scenarios from FIRST_SEED on, and a report
	@PYTHONPATH=tests/faults $(BIN)/python -m chaos --seeds $(SEEDS) --first-seed $(FIRST_SEED) --guard $(GUARD) $(CHAOS_ARGS)

.PHONY: chaos-partition
chaos-partition: $(READY) ## The same with partition runs: killed, frozen, against each other; SEEDS, FIRST_SEED
	@PYTHONPATH=tests/faults $(BIN)/python -m partition_chaos --seeds $(SEEDS) --first-seed $(FIRST_SEED) --guard $(GUARD) $(CHAOS_ARGS)

.PHONY: chaos-kinesis
chaos-kinesis: $(READY) ## The same with lanes that archive a Kinesis stream while it is split and merged; SEEDS, FIRST_SEED
	@PYTHONPATH=tests/faults $(BIN)/python -m kinesis_chaos --seeds $(SEEDS) --first-seed $(FIRST_SEED) --guard $(GUARD) $(CHAOS_ARGS)

.PHONY: chaos-kafka
chaos-kafka: $(READY) ## Brokers killed, frozen and restarted: what the watch reports, and after how many seconds; SEEDS, FIRST_SEED
	@PYTHONPATH=tests/faults $(BIN)/python -m kafka_chaos --seeds $(SEEDS) --first-seed $(FIRST_SEED) $(CHAOS_ARGS)

.PHONY: chaos-publish
chaos-publish: $(READY) ## Random histories of runs, holds, decisions and backfills, killed and frozen; SEEDS, FIRST_SEED
	@PYTHONPATH=tests/faults:tests/integration $(BIN)/python -m publish_chaos --seeds $(SEEDS) --first-seed $(FIRST_SEED) $(CHAOS_ARGS)

.PHONY: fuzz
fuzz: $(READY) ## Random inputs for every decoder, parser, config, URL and web input; MINUTES, TARGET, SEED (INPUT, BATCH repeat)
	@PYTHONPATH=tests/fuzz:tests/unit/interfaces/web $(BIN)/python -m fuzzers --minutes $(MINUTES) $(FUZZ_ARGS)

.PHONY: drills
drills: $(READY) ## Break the stack in ten ways, wait for the alert, repair it, verify (DRILL selects, SHORT=1: shorter)
	@WAYBILL_DRILLS=$(if $(SHORT),short,long) WAYBILL_DRILLS_JSON=$(DRILLS_JSON) $(BIN)/python -m pytest -m drill -s tests/faults/test_drills.py tests/integration/test_watch_retention.py $(if $(DRILL),-k "$(DRILL)")

.PHONY: lint
lint: $(READY) ## ruff, mypy (strict on include/), the layers' contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: $(READY) ## Let ruff put the code in order
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: lock
lock: $(READY) ## Compile requirements*.txt from requirements*.in
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --python-version 3.11 requirements.in -o requirements.txt
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --python-version 3.11 requirements-dev.in -o requirements-dev.txt
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --python-version 3.11 requirements-spark.in -o requirements-spark.txt
	@$(BIN)/uv pip compile -q --generate-hashes --no-emit-index-url --python-version 3.11 requirements-image.in -o requirements-image.txt
	@$(BIN)/uv pip compile -q --no-deps --generate-hashes --no-emit-index-url --python-version 3.11 tests/integration/data/corpora.in -o tests/integration/data/corpora.txt

.PHONY: lock-images
lock-images: $(READY) ## Write the digests of the images into the Dockerfile and docker-compose.yaml; needs Docker
	@$(BIN)/python -m devstack.supply_chain lock-images

.PHONY: audit
audit: $(READY) ## Compare what is locked with known advisories: OSV's, or those stored here without a network
	@$(BIN)/python -m devstack.supply_chain audit $(AUDIT_ARGS)

.PHONY: audit-update
audit-update: $(READY) ## Store OSV's advisories of what is locked, and compare
	@$(BIN)/python -m devstack.supply_chain audit --update

.PHONY: clean
clean: ## Remove the virtual environment and the local stack's state
	@rm -rf $(VENV) .waybill .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help
help: ## What can be made
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z_-]+:.*##/ {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
