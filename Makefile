# Everything but the demo runs from .venv, which is made when it is needed and again when its pins change.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

INSTALLED := $(VENV)/installed
REQUIREMENTS := $(VENV)/requirements-installed
RIVALS := $(VENV)/rivals-installed
# The demo's own: a sixth of what tests need.
DEMO_VENV := .venv-demo
DEMO := $(DEMO_VENV)/installed

# Environments are made without bytecode, which is then written once by what imports a module first:
# else each of a run's thousand processes would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo canary-demo test test-fast durations faults explore check docs-check simulate load bench profile soak soak-http cluster fuzz signals requirements screenshots manifests image servers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

demo: $(DEMO) ## See the gateway at work; needs Python and nothing else
	@$(DEMO_VENV)/bin/python -m pos_gateway demo $(ARGS)
	@$(if $(ARGS),,echo "In this clone: make demo ARGS=--serve")

canary-demo: $(INSTALLED) servers ## Rehearse the move to green workers under load, and back; ARGS=--short in a minute
	$(BIN)/python -m loadtests.canary $(ARGS)

# Many tests wait for a server or a merchant, so five go at once on two cores, each with servers of its
# own. They go in the order that tests/distribution.py gives them, the longest first by tests/durations.json;
# it says whose tests need not stay together.
PROCESSES ?= 5
AT_ONCE := --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(INSTALLED) servers ## Run the tests; ARGS="-k admission" runs some
	$(BIN)/pytest $(AT_ONCE) $(ARGS)

test-fast: $(INSTALLED) ## The tests that need no server and end within a minute and a half
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --fast $(ARGS)

durations: $(INSTALLED) servers ## Record how long each file of the tests takes, which their order is made of
	$(BIN)/pytest $(AT_ONCE) --record-durations

faults: $(INSTALLED) ## Plant every fault that the tests are to find; `make test` plants a few
	FAULTS=all $(BIN)/pytest $(AT_ONCE) --timeout 1200 tests/test_planted_faults.py tests/simulation/test_simulation.py tests/admission/adversaries/test_adversaries.py

EXAMPLES ?= 2000
explore: $(INSTALLED) ## Have the state machines try 2,000 examples each, or EXAMPLES=; `make test` tries 12 to 100
	EXAMPLES=$(EXAMPLES) $(BIN)/pytest $(AT_ONCE) --timeout 3600 tests/admission/test_admission_machine.py tests/ledger/test_ledger_machine.py tests/ledger/test_callbacks_machine.py tests/ledger/test_callbacks_table.py tests/events/test_pipeline_machine.py tests/fleet/test_fleet_machine.py tests/bulk/test_bulk_machine.py

# Each by itself, so that two cores do two at once; what one prints is not mixed with another's.
CHECKS := check-format check-lint check-types check-types-newest check-floors check-house check-words docs-check
check: ## Formatting, lint, types, floors, limits, words, generated documents
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target --keep-going $(CHECKS)

.PHONY: $(CHECKS)
$(CHECKS): $(INSTALLED)
check-format:
	$(BIN)/ruff format --check .
check-lint:
	$(BIN)/ruff check .
check-types:
	$(BIN)/mypy
check-types-newest:
	$(BIN)/mypy --python-version 3.13
check-floors:
	$(BIN)/lint-imports
check-house:
	$(BIN)/python .ci/house.py
check-words:
	$(BIN)/python .ci/words.py

docs-check: ## Are the generated documents those that the code generates?
	$(BIN)/pos-gateway schema --check docs

SEEDS ?= 0-999
simulate: $(INSTALLED) ## Run workers that crash, and operators who race them, in virtual time: SEEDS=0-9999 runs many, SEED=7 replays one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

load: $(INSTALLED) servers ## Load a whole gateway: SCENARIO=lunch-peak writes a page about it; without one, list them
	$(BIN)/python -m loadtests.load $(SCENARIO) $(ARGS)

bench: $(RIVALS) servers ## Measure beside what a user would pick instead; ARGS=--quick takes 3 minutes
	@mkdir -p build
	$(BIN)/python -m loadtests.bench --json build/bench.json --charts build $(ARGS)

profile: $(RIVALS) servers ## Say where an order's CPU goes and which functions it calls, and draw build/profile/flame.svg
	$(BIN)/python -m loadtests.profile $(ARGS)

soak: $(INSTALLED) servers ## Break everything under load, and judge; ARGS are the soak's
	$(BIN)/python -m loadtests.soak $(ARGS)

soak-http: $(INSTALLED) servers ## Twenty thousand orders over HTTP, while servers, workers, broker and database are killed
	HTTP=20000 $(BIN)/pytest --timeout 3600 tests/faults/test_http.py

cluster: $(INSTALLED) servers ## Ten rounds with a RabbitMQ of three nodes that loses one: killed, cut off, frozen
	CLUSTER=10 $(BIN)/pytest --timeout 3600 tests/faults/test_broker_cluster.py

fuzz: $(INSTALLED) servers ## A hundred thousand damaged replies, as many damaged messages, and 20,000 dear ones of each kind; SEED= chooses others
	FUZZ=100000 $(BIN)/pytest --timeout 3600 tests/transport/test_reply_fuzz.py
	FUZZ=100000 $(BIN)/pytest --timeout 3600 tests/worker/test_message_fuzz.py
	FUZZ=20000 $(BIN)/pytest --timeout 7200 tests/worker/test_cost.py

signals: $(INSTALLED) servers ## Tell every container's command to stop at twenty moments of its first 4 s; `make test` at three
	SIGNALS=all $(BIN)/pytest tests/faults/test_signals.py

# Pins that still fit are kept; ARGS=--upgrade takes the newest. That of setuptools is in pyproject.toml, too.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make requirements" $(ARGS)

requirements: $(INSTALLED) ## Pin what pyproject.toml asks for; ARGS=--upgrade for the newest
	$(LOCK) --extra worker --extra postgres --extra redis --extra tracing pyproject.toml --output-file requirements.txt
	$(LOCK) --extra worker --constraints requirements.txt pyproject.toml --output-file requirements-demo.txt
	$(LOCK) --all-extras --constraints requirements.txt pyproject.toml --output-file requirements-dev.txt
	$(LOCK) --group bench --constraints requirements-dev.txt --output-file requirements-bench.txt
	printf 'setuptools\nuv\n' | $(LOCK) --constraints requirements-dev.txt - --output-file deploy/image/build.txt
	echo cyclonedx-bom | $(LOCK) - --output-file deploy/image/sbom.txt
	echo httptools | $(LOCK) --constraints requirements-dev.txt - --output-file deploy/image/merchants.txt

PATHS ?=
LOOKS ?= --look light
screenshots: $(INSTALLED) servers ## Take the documents' pictures of the operations page; PATHS="/ /login" LOOKS= others, dark and narrow
	$(BIN)/python -m testkit.page_screenshots $(LOOKS) $(PATHS)

manifests: $(INSTALLED) ## Write the manifests that are made of addresses.py and rules.yml
	$(BIN)/python -m deploy.generate

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image: ## Build the image with Docker; PYTHON_DIGEST=sha256:... pins its base
	docker build --build-arg PYTHON_DIGEST=$(PYTHON_DIGEST) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$(shell git rev-parse HEAD) --tag pos-gateway:$(VERSION) .

servers:
	@tests/install-servers

clean: ## Remove the environment and everything made by a run
	rm -rf $(VENV) $(DEMO_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define check_python
@test -n "$(PYTHON)" || { echo "POS Gateway needs Python 3.11 or newer: install it, or name it with 'make PYTHON=/path/to/python'." >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install Debian's package python3-venv." >&2; exit 1; }
endef

# Without bytecode, which is most of the time and a third of the size; what runs has it afterwards.
$(DEMO): requirements-demo.txt
	$(check_python)
	@echo "making $(DEMO_VENV): some 130 MB, half a minute, once"
	@$(PYTHON) -m venv --clear $(DEMO_VENV)
	@$(DEMO_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes --requirement requirements-demo.txt
	@touch $@

# uv installs in a sixth of pip's time; pip, which every venv has, installs uv by its hash.
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python

# The pins and the package have a stamp each, so that an edit of pyproject.toml alone costs seconds.
$(REQUIREMENTS): requirements-dev.txt
	$(check_python)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement deploy/image/build.txt
	$(INSTALL) --require-hashes --requirement requirements-dev.txt
	@touch $@

$(INSTALLED): $(REQUIREMENTS) pyproject.toml
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# What the gateway is compared with, and the profiler: only who measures waits for them.
$(RIVALS): $(INSTALLED) requirements-bench.txt
	$(INSTALL) --require-hashes --requirement requirements-bench.txt
	@touch $@
