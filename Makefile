PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LAYERS := nodes executor kernels web workflows

.PHONY: setup run test lint types check clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch>=2.11,<2.14'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

run: setup
	$(BIN)/katz run workflows/controlnet_lora.json --output output

test: setup lint types check

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The layers install as katz_graph.<layer>; a tree of links shows mypy the package as it will be.
types:
	rm -rf build/types && mkdir -p build/types/katz_graph
	for entry in katz_graph/*; do ln -s ../../../$$entry build/types/katz_graph/; done
	for layer in $(LAYERS); do ln -s ../../../$$layer build/types/katz_graph/; done
	cd build/types && ../../$(BIN)/mypy --strict -p katz_graph

# Tests in one process run two at a time; those that start processes of their own run one by one.
check:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile tests/plain tests/cpu
	$(BIN)/python -m pytest tests/cluster tests/gpu tests/web

clean:
	rm -rf build output
