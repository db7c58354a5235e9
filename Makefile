# Everything starts from a bare checkout with python3 >= 3.11: each target first makes .venv where it is missing or old.
#   make demo    the main job on a sample protected program, in about five minutes
#   make test    all tests

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Two groups are apart: make test-model first builds llama.cpp, for ten minutes and more on two cores; make test-browser drives
# the Prefect UI, whose pages change with its version.
TEST_GROUPS := agent node faults unit flows mutants postgres
# The node's tests are the longest: those that run an agent are a group of their own.
AGENT_TESTS := tests/node/test_agent_*.py tests/node/nvml/test_agent_*.py
IN_agent = $(AGENT_TESTS)
IN_node = tests/node $(AGENT_TESTS:%=--ignore-glob='%')
PYTEST ?= $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help setup map test-browser test-gpu test-model test-long test-busy soak fuzz test-sabotage demo-llm demo demo-full test test-unit need-chromium need-postgresql pictures lint bench mutants lock clean $(TEST_GROUPS:%=test-%)

help:
	@echo "make setup      the environment in .venv (uv where it is on PATH, else pip), locked versions"
	@echo "make demo       the main job on a sample protected program (about five minutes)"
	@echo "make demo-full  the same, and once more with the work uncapped, side by side"
	@echo "make demo-llm   a real language model beside it: certified, then a hundred prompts"
	@echo "make test       all tests, in groups: $(TEST_GROUPS)"
	@echo "make test-unit  one group (test-node, test-flows, ...)"
	@echo "make test-model  the real language model in its own environment, built from source the first time"
	@echo "make test-long   the tests that take many minutes"
	@echo "make test-sabotage  500 prompts while something kills a process every few seconds"
	@echo "make test-busy   all tests beside a competitor on each core, and on one core alone"
	@echo "make soak       SOAK_MINUTES (60) of batches, phases and kills on one node, and a balance"
	@echo "make test-gpu   the GPU meter on a real NVIDIA device"
	@echo "make lint       formatting, lint, types, import rules"
	@echo "make fuzz       hostile input of every kind, FUZZ_N (100000) in all"
	@echo "make bench      all benchmarks, on the host as it is and with every core taken, into benchmarks/RESULTS.md"
	@echo "make mutants    every fault put in on purpose, each of which must turn tests red (CI runs the quick ones)"
	@echo "make map        the module map in docs/architecture.md, from the docstrings"
	@echo "make lock       requirements.lock anew (needs uv)"
	@echo "make clean      remove .venv and caches"

setup: $(READY)

# Made again only when what is to be installed changes.
$(READY): pyproject.toml requirements.lock scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh $(VENV)
	@touch $@

demo: $(READY)
	$(BIN)/cotenant demo

demo-llm: $(READY)
	$(BIN)/cotenant demo --llm

demo-full: $(READY)
	$(BIN)/cotenant demo --full

# Two groups at a time (their tests wait more than they compute), each with what it installs for itself; what a group said is
# shown when it is through. Every group runs, also after one that failed; the whole fails if one did.
test: $(READY)
	@$(MAKE) --no-print-directory --keep-going --output-sync=target -j2 $(TEST_GROUPS:%=test-%)

$(TEST_GROUPS:%=test-%) test-model test-browser: test-%: $(READY)
	$(PYTEST) $(or $(IN_$*),tests/$*)

# What takes many minutes: the certified chain live, prompts under a saboteur.
test-long: $(READY)
	$(PYTEST) tests -m long

# The whole suite beside a competitor pinned to each core, and then on one core alone.
test-busy: $(READY)
	bash scripts/busy.sh $(MAKE) --no-print-directory test
	taskset -c 0 $(MAKE) --no-print-directory test

# An hour of batches, phases and kills on one node; everything must add up at the end.
soak: $(READY)
	$(BIN)/python -m tests.soak --minutes $(or $(SOAK_MINUTES),60)

test-sabotage: $(READY)
	COTENANT_SABOTAGE_PROMPTS=500 $(PYTEST) tests/faults/test_batch_kills.py -m long -s

# Debian packages that these groups drive; without them (and without root to install them) their tests are skipped, which is said.
test-browser: need-chromium
test-postgres: need-postgresql
need-chromium:
	@command -v chromium >/dev/null || $(call install,chromium)
need-postgresql:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || $(call install,postgresql)
install = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get -o DPkg::Lock::Timeout=600 update -q && apt-get -o DPkg::Lock::Timeout=600 install -qy --no-install-recommends $(1); } \
	|| echo "install $(1) for these tests" >&2

# The pictures in docs/: taken anew by the browser's test.
pictures: need-chromium $(READY)
	COTENANT_PICTURES=docs/pictures $(PYTEST) tests/browser

# On a machine with a real NVIDIA device; not part of `make test`.
test-gpu: $(READY)
	$(PYTEST) tests/node/nvml -m gpu -s

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# FUZZ_N inputs in all, of every kind that a stranger may hand us.
fuzz: $(READY)
	$(PYTEST) -s tests/fuzz

# Exit status 1 where a figure is over its budget: the second half runs all the same.
bench: $(READY)
	$(BIN)/python -m benchmarks; idle=$$?; $(BIN)/python -m benchmarks --busy && exit $$idle

mutants: $(READY)
	$(BIN)/python -m tests.mutants

map: $(READY)
	$(BIN)/python -m scripts.module_map

lock:
	@command -v uv >/dev/null || { echo "make lock needs uv on PATH (https://docs.astral.sh/uv/)" >&2; exit 2; }
	uv pip compile pyproject.toml --universal --python-version 3.11 --extra test --no-header --no-annotate -o requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
