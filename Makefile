# HRM for developers. `make help` lists the targets; nothing but Python 3.11+, make and a Java 17+ (or
# root, to install one) is needed. Everything is installed into .venv; the system stays as it is.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Enough to use HRM and to see the demo; .ready adds what tests and benchmarks need.
USABLE := $(VENV)/.usable

# What a Spark driver binds to: a machine's host name does not always resolve.
export SPARK_LOCAL_IP ?= 127.0.0.1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of Python processes; each would compile HRM where none may keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE
# The virtual environment first, so that python3 is the one that has pyspark.
export PATH := $(CURDIR)/$(BIN):$(PATH)

PROTO := $(wildcard proto/hrm/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint audit proto-check spark-tools test-unit test-spark test-papers test-full test-campaign test-extra test-hostile test-matrix examples format proto docs weights clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## set up .venv and, where there is none, a Java 17+

# pyspark is a source archive of 450 MB. pip keeps the wheel that it builds from it, so the second
# environment on a machine takes seconds.
$(USABLE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; name a newer one: make venv PYTHON=python3.12"; exit 1; }
	@.ci/ensure-java
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "error: no venv module; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	@echo "installing HRM and its dependencies into $(VENV); pyspark alone is 450 MB"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spark]'
	@touch $@

$(READY): $(USABLE)
	@echo "installing what tests and benchmarks need into $(VENV); PyTorch is the largest of it"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[spark,bench,dev]'
	@touch $@

demo: $(USABLE) ## start a cluster, run WordCount, a streaming Top-K and a pipeline on it, show what happened
	$(BIN)/python -m benchmarks.demo

# Tests that run at once. HRM_TEST_PATIENCE=4 is for a machine with other work, not more of these.
WORKERS ?= 2

# Style and types keep one core busy, and so does what the tests of Spark share: both at once.
test: $(READY) ## what every change must pass; it says what it leaves out
	$(MAKE) --jobs=2 --output-sync lint spark-tools
	$(MAKE) proto-check test-unit test-spark
	@echo "make test-full runs everything"

lint: $(READY) ## style, types, layering and what is dangerous
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive hrm

# Not in `make test`: it asks the package index, and what it answers changes without the code.
audit: ## known vulnerabilities of the versions in constraints.txt (needs the network)
	@$(PYTHON) .ci/audit .venv-audit

proto-check: $(READY) ## hrm/v1 is what proto/ generates
	$(BIN)/python -m pytest -q -ra tests/test_generated.py

# Tests make it themselves where it is missing, and wait for it.
spark-tools: $(READY) ## the plugin and the archives that tests of a real Spark share (some two minutes, once)
	$(BIN)/python -m tests.spark_tools

UNIT := not spark and not hostile and not papers
test-unit: $(READY) ## tests that need no Spark (some ten minutes)
	$(BIN)/python -m pytest -ra -m "$(UNIT)" -n $(WORKERS) --dist worksteal --durations=5
	@echo "not run here: make test-papers (papers' figures, traces), make test-hostile (long attacks)," \
	  "make test-campaign (thousands of fault seeds)"

# A module stays with one process, for it may have a cluster of its own; the longest begin first
# (LONG_FIRST in tests/conftest.py). They wait for processes to start and to end more than they
# compute: three at once keep two cores busy. They share them, so limits of time are wider by as much.
SPARK_WORKERS ?= 3
# Without the thousands of other tests, which each process would read first.
SPARK_MODULES = $$(grep -rlE 'mark\.spark\b' --include='test_*.py' tests)
test-spark: export HRM_TEST_PATIENCE ?= $(SPARK_WORKERS)
test-spark: $(READY) ## tests that run a real Spark, all those on a real cluster among them (some twenty minutes)
	$(BIN)/python -m pytest -ra -m "spark and not extra" -n $(SPARK_WORKERS) --dist loadfile \
	  --no-loadscope-reorder --durations=5 $(SPARK_MODULES)
	@echo "not run here: make test-extra (the benchmarks' applications; the plugin alone; all of TPC-H under faults)"

# Each process computes with one thread, for there are as many processes as cores.
test-unit test-papers: export OMP_NUM_THREADS ?= 1
test-papers: $(READY) ## not in `make test`: figures of papers, and traces (CI: where their code has changed)
	$(BIN)/python -m pytest -ra -m "papers and not spark" -n $(WORKERS) --dist worksteal --timeout 300 --durations=5

test-full: test test-papers test-extra test-hostile test-campaign ## everything on this Spark (an hour)

# One seed is one history: these are the same seeds each time, FIRST=20000 begins elsewhere.
FIRST ?= 0
SEEDS ?= 10000
CAMPAIGN_PART := 500
test-campaign: $(READY) ## not in `make test`: 10,000 seeds of faults in the simulator (FIRST=0 SEEDS=10000)
	$(BIN)/python -c "print(*range($(FIRST), $(FIRST) + $(SEEDS), $(CAMPAIGN_PART)), sep='\n')" | \
	  xargs -P $(WORKERS) -I SEED $(BIN)/hrm sim faults --seed SEED --runs $(CAMPAIGN_PART)

test-extra: $(READY) ## not in `make test`: the benchmarks' applications, the plugin against a fake master, TPC-H under faults
	$(BIN)/python -m pytest -ra -m "spark and extra" --durations=5

# The quick ones are part of test-unit. HRM_HOSTILE_SEED and HRM_HOSTILE_MESSAGES are for the generated ones.
ATTACKS := .pytest_cache/attacks.jsonl
test-hostile: $(READY) ## attacks on real daemons (ten minutes), into the table of docs/security.md
	@mkdir -p $(dir $(ATTACKS)) && rm -f $(ATTACKS)
	HRM_HOSTILE_ROWS=$(CURDIR)/$(ATTACKS) $(BIN)/python -m pytest -ra tests/hostile --durations=5; \
	  status=$$?; $(BIN)/python .ci/hostile-report $(ATTACKS); exit $$status

# An environment of its own for each, in .venv-matrix; a Spark is some 450 MB to install. WHOLE=1 runs
# all integration tests, VERSIONS="4.0 4.3" some versions, TESTS="test_spark test_history" some modules.
VERSIONS ?= 3.5 4.0 4.1 4.3
test-matrix: ## the core of the integration tests on several versions of Spark
	@.ci/ensure-java
	PYTHON=$(PYTHON) .ci/test-matrix $(if $(WHOLE),--whole) $(VERSIONS)

examples: $(READY) ## Spark's own Python examples on a cluster of HRM, into a table (an hour)
	$(BIN)/python -m benchmarks.examples --at-once 2

format: $(READY) ## put the code into the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY) ## generate hrm/v1 from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)

docs: $(READY) ## write docs/configuration.md, states.md, spark-settings.md and queues-compared.md
	$(BIN)/python -m docs.generate.configuration docs/configuration.md
	$(BIN)/python -m docs.generate.states docs/states.md
	$(BIN)/python -m docs.generate.spark_settings docs/spark-settings.md
	$(BIN)/python -m docs.generate.queues_compared docs/queues-compared.md

# Some minutes a model; the seeds are in the trainer. What comes out is committed with its results.
WEIGHTS := hrm/policies/weights
SET  := --options tasks=250 --rounds 4 --traces 25 --validation-seeds 8
FLAT := --pretrain-decisions 16000 --replay 16000 --decisions 16000 --validate-every 4000 \
  --validation-seeds 3 --options nodes=11,node_policy=iawp:guarded
weights: $(READY) ## train the weights of learned policies that ship with HRM (long)
	OMP_NUM_THREADS=1 $(BIN)/python -m hrm.learn.ldwp_set $(SET) --out $(WEIGHTS)/ldwp-set-2.npz
	OMP_NUM_THREADS=1 $(BIN)/python -m hrm.learn.ldwp $(FLAT) --out $(WEIGHTS)/ldwp-1.npz

clean: ## remove what the tools left; .venv stays (rm -r .venv removes that)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find hrm tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
