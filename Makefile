# make demo, make test and make check need nothing before them: each sets .venv up when it is missing or out of date.
#
#   make setup PYTHON=/path/to/python3.12         another interpreter (3.11 or newer)
#   make setup TORCH_ARGS="--index-url URL"       another build of torch, such as a CUDA one
#   make setup TORCH=torch==2.11.0                another version of torch
#   make test WORKERS=1                           one process; PYTEST_ARGS="-n 0 --pdb" stops in it
#
# An environment that is there already is kept: `make clean` first to change its interpreter or its torch.

TORCH ?= torch==2.13.0
TORCH_ARGS ?=
PYTHON ?=
PYTEST_ARGS ?=
# Processes that `make test` shares the tests out to: one for each core, but no more than four.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -lt 4 ] && echo $$n || echo 4)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
BENCH_STAMP := $(VENV)/.stamp-bench
PINS := $(VENV)/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q

# A file goes to one process, so that what its tests share is made once; tests/conftest.py says in which order.
SHARED_OUT := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# glibc otherwise returns and re-maps large blocks at every step: spread of CPU step times ±15 % instead of ±1 %.
STEADY_MALLOC := MALLOC_MMAP_THRESHOLD_=268435456 MALLOC_TRIM_THRESHOLD_=268435456

.PHONY: setup demo test browser test-slow test-gpu check docs format testbed bench bench-train bench-pages clean help
.DELETE_ON_ERROR:

help: ## show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## make .venv and install everything, pinned

demo: $(STAMP) ## train a small network here and show where its time goes
	$(BIN)/laptime demo

test: $(STAMP) browser ## the test suite, under ten minutes on two cores
	$(BIN)/python -m pytest -m "not slow and not gpu" $(SHARED_OUT) --durations 15 $(PYTEST_ARGS)

# Debian's Chromium, for the tests that look at pages; where it cannot be installed from here, they skip and say so.
browser:
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium, which the tests of the pages drive"; \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q chromium || \
	    echo "chromium could not be installed: the tests of the pages will skip" >&2; \
	fi

# One file has most of the tests, each a process that nothing disturbs: these are shared out. The rest plants delays,
# cuts networks and kills, one after the other. Both run, whatever the first says; pytest ends with 5 where it has no test.
MANY := tests/recorder/test_faults.py
test-slow: $(STAMP) ## the tests that take longer
	@rc=0; set -x; \
	$(BIN)/python -m pytest -m "slow and not gpu" $(MANY) -n $(WORKERS) --dist load $(PYTEST_ARGS) || rc=$$?; \
	[ $$rc != 5 ] || rc=0; \
	$(BIN)/python -m pytest -m "slow and not gpu" --ignore $(MANY) --durations 15 $(PYTEST_ARGS) || \
	  { other=$$?; [ $$other = 5 ] || rc=$$other; }; \
	exit $$rc

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

check: $(STAMP) ## lint, format, types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src $(wildcard benchmarks tools)
	$(BIN)/lint-imports

docs: $(STAMP) ## write docs/reference.md and the keys of docs/configuration.md anew from the code
	$(BIN)/python -m tools.reference

format: $(STAMP) ## put the code into the format that check asks for
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

testbed: $(STAMP) ## three hosts made of network namespaces, as root; TESTBED=down removes them
	$(BIN)/python -m tools.testbed $(or $(TESTBED),up --hosts 3 --rate 100mbit)

bench: $(BENCH_STAMP) ## the benchmark tables
	$(STEADY_MALLOC) $(BIN)/python -m benchmarks

bench-train: $(STAMP) ## the training loop, the JPEG pipeline and the thesis' recipes against others
	$(STEADY_MALLOC) $(BIN)/python -m benchmarks.loop
	$(STEADY_MALLOC) $(BIN)/python -m benchmarks.jpeg
	$(STEADY_MALLOC) $(BIN)/python -m benchmarks.recipes

bench-pages: $(STAMP) ## reports and the dashboard, until they are drawn in Chromium
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.dashboard_load
	$(BIN)/python -m benchmarks.pages

clean: ## remove .venv, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests $(wildcard benchmarks tools) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- how .venv is made ---------------------------------------------------------------------------

# bin/pip is the last file that venv writes, so an interrupted one is made again.
$(BIN)/pip:
	@python=; for p in $(or $(PYTHON),python3.11 python3 python3.12 python3.13); do \
	  if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "laptime needs Python 3.11 or newer; install one, or name it: make setup PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $$package, since $$python cannot make virtual environments"; \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$$package" || exit 1; \
	  else \
	    echo "$$python cannot make virtual environments; on Debian: sudo apt-get install $$package" >&2; exit 1; \
	  fi; \
	fi; \
	echo "making $(VENV) with $$($$python --version)"; \
	$$python -m venv --clear $(VENV)

# torch first and by itself, so that no later step chooses another build of it; then the rest, held to what was installed.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing $(TORCH), then the rest (a few minutes the first time)"
	@sed '/^torch==/d' constraints.txt >$(PINS)
	$(PIP) $(if $(TORCH_ARGS),$(TORCH_ARGS),-c $(PINS)) '$(TORCH)'
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >>$(PINS)
	$(PIP) -c $(PINS) hatchling editables
	$(PIP) -c $(PINS) --no-build-isolation -e '.[dev]'
	@touch $@

# DeepSpeed's build imports torch, hence no isolation; it compiles nothing on the way.
$(BENCH_STAMP): $(STAMP)
	@echo "installing the benchmarks' peers"
	DS_BUILD_OPS=0 $(PIP) -c $(PINS) --no-build-isolation -e '.[bench]'
	@touch $@
