# Everything a newcomer needs is one verb away; `make help` lists the verbs.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all study test-kernels test-lowest check format docs notebooks bench race venv clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# An installation is made anew if one of these changes: the C kernels are built with it.
INSTALLED_FROM := pyproject.toml constraints-dev.txt hatch_build.py src/outvote/ops/native.c
CORE_STAMP := $(VENV)/.installed-core
# Every install is constrained. Without the pin of torch, pip would take the newest build there is,
# and with it gigabytes of CUDA libraries.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints-dev.txt

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE_STAMP) ## a federation under attack: real images, no network, a minute or two
	$(BIN)/outvote demo

# Bytecode is kept, also where a container forbids it: pytest rewrites all tests on every start, and
# the programs that tests start compile all of outvote, for half a minute in total.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

# Two processes of two threads would wait for each other on two cores.
test: check ## check, then the fast tests
	OMP_NUM_THREADS=1 $(PYTEST)

test-all: check ## check, then all tests, slow ones too
	$(PIP_INSTALL) 'flwr[simulation]' # brings Ray, which the tests start in a network namespace only
	$(PIP_INSTALL) -e '.[docs]' # the site and the notebooks
	$(PIP_INSTALL) -e '.[nvflare]' # its simulator
	$(PYTEST) -m "" tests study/tests

study: $(STAMP) ## make the pages of our results from their exports, and check them
	$(BIN)/python study/results_pages.py
	$(PYTEST) -m "" study/tests

test-lowest: ## a few tests with the lowest versions of all dependencies, in an environment of their own
	$(PYTHON) tools/lowest.py

KERNEL_TESTS := tests/golden tests/unit/test_ops.py
test-kernels: $(STAMP) ## the Triton kernels on a CPU: by Triton's interpreter, and compiled for a GPU
	$(PIP_INSTALL) 'triton<3.9' # builds of torch for CUDA bring their own; 3.9 refuses masks of scalars
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(KERNEL_TESTS)
	$(BIN)/python tools/compile_kernels.py

check: $(STAMP) ## formatting, lint, types, import layers; changes nothing
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP) ## format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: $(STAMP) ## build the site into site/: open site/index.html
	$(PIP_INSTALL) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo site/index.html

notebooks: $(STAMP) ## execute the notebooks of the docs, and keep their outputs
	$(PIP_INSTALL) -e '.[docs]'
	$(BIN)/python tools/run_notebooks.py

bench: $(STAMP) ## time rules, attacks and simulator beside plain loops and ByzFL
	$(BIN)/python benchmarks/bench_rules.py
	$(BIN)/python benchmarks/bench_byzfl.py
	$(BIN)/python benchmarks/bench_attacks.py
	$(BIN)/python benchmarks/bench_engine.py

race: $(STAMP) ## the same federated work in outvote, plain PyTorch, ByzFL, Flower and pfl-research
	$(BIN)/python benchmarks/race.py

venv: $(STAMP) ## create or refresh .venv with the pinned development tools

# The demo needs no development tool.
$(CORE_STAMP): $(INSTALLED_FROM)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e .
	@touch $@

$(STAMP): $(INSTALLED_FROM)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev]'
	@$(BIN)/python -c 'import numpy; assert numpy.lib.NumpyVersion(numpy.__version__) >= "2.0.0", "numpy 2 is needed, got " + numpy.__version__'
ifeq ($(CI),true)
	@$(BIN)/python -c 'import torch; assert torch.version.cuda is None, "CI takes the CPU build of torch, got " + torch.__version__'
endif
	@touch $(CORE_STAMP) $@

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
