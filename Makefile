PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LAYERS := nodes executor kernels web workflows

# Tests start hundreds of processes; without caches of byte code each of them compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test lint types bytecode check docs clean

setup: $(VENV)/.installed

# Byte code is made of what is used, when it is first used: of everything takes longer.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'torch>=2.11,<2.14'
	$(PIP) -e '.[dev]'
	touch $@

run: setup
	$(BIN)/katz run workflows/controlnet_lora.json --output output

test: setup lint
	$(MAKE) --no-print-directory --jobs 2 types bytecode
	$(MAKE) --no-print-directory check

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The layers install as katz_graph.<layer>; a tree of links shows mypy the package as it will be.
types:
	rm -rf build/types && mkdir -p build/types/katz_graph
	for entry in katz_graph/*; do ln -s ../../../$$entry build/types/katz_graph/; done
	for layer in $(LAYERS); do ln -s ../../../$$layer build/types/katz_graph/; done
	cd build/types && ../../$(BIN)/mypy --strict -p katz_graph

# What tests load is compiled once, and not in each of their processes; what is wrong with it is told by `check`.
bytecode:
	-$(BIN)/python -m pytest --collect-only -qq tests > /dev/null

# Three at a time on two processors, since some wait; the longest files first.
check:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests/cluster tests/web tests/cpu tests/plain tests/gpu

# Writes what docs/ shows of plans and benches anew.
docs: setup
	$(BIN)/python -m katz_graph.bench.docs

clean:
	rm -rf build output
