PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
EDITOR := web/editor
NEW_ENOUGH := const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)
TORCH := import torch; v = torch.version; built = f"CUDA {v.cuda}" if v.cuda else f"ROCm {v.hip}" if v.hip else "processors"; print(f"torch {torch.__version__}, built for {built}; GPUs here: {torch.cuda.device_count()}")
LAYERS := nodes executor kernels web workflows

# Tests start hundreds of processes; without caches of byte code each of them compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup run test torch-build lint types bytecode check packages editor check-editor editor-sources editor-sources-here editor-in-browser docs clean

setup: $(VENV)/.installed

# Byte code is made of what is used, when it is first used: of everything takes longer.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'torch>=2.11,<2.14'
	$(PIP) -e '.[dev]'
	touch $@

run: setup
	$(BIN)/katz run workflows/controlnet_lora.json --output output

test:
	$(MAKE) --no-print-directory --jobs 2 setup packages
	@$(MAKE) --no-print-directory torch-build
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory --jobs 3 types bytecode editor-sources
	$(MAKE) --no-print-directory check
	$(MAKE) --no-print-directory editor-in-browser

# PyPI's torch for Linux is built for CUDA, other indices have builds for processors alone.
torch-build: setup
	@$(BIN)/python -c '$(TORCH)'

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

# Three at a time on two processors, since some wait; the longest files first. Says at its end what took longest.
check:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 30 --durations-min 10 tests/cluster tests/web tests/cpu tests/plain tests/gpu

# Builds the editor, with the types of what the server sends, into web/dist, which is committed: who installs the package needs no Node.
editor: setup $(EDITOR)/node_modules/.installed
	mkdir -p build && $(BIN)/katz schema > build/schema.json
	cd $(EDITOR) && npm run --silent messages < ../../build/schema.json > src/server/generated/messages.ts
	cd $(EDITOR) && npm run --silent build

$(EDITOR)/node_modules/.installed: $(EDITOR)/package-lock.json
	cd $(EDITOR) && npm ci --silent --no-audit --no-fund
	touch $@

# npm's packages come while pip's are installed; what goes wrong is told by `editor-sources`.
packages:
	@if node -e '$(NEW_ENOUGH)' 2> /dev/null; \
	then $(MAKE) --no-print-directory $(EDITOR)/node_modules/.installed > /dev/null 2>&1 || true; fi

check-editor: editor-sources editor-in-browser

# What is committed of the editor must be what its sources give. Without a recent Node, or a registry to
# fetch its packages from, a line says that it is not checked.
editor-sources:
	@if ! node -e '$(NEW_ENOUGH)' 2> /dev/null; \
	then echo "no Node of version 20.19 or newer: the editor is not checked"; \
	elif $(MAKE) --no-print-directory $(EDITOR)/node_modules/.installed; \
	then $(MAKE) --no-print-directory editor-sources-here; \
	elif npm ping --silent > /dev/null 2>&1; \
	then exit 1; \
	else echo "npm's registry does not answer: the editor is not checked"; fi

editor-sources-here: setup $(EDITOR)/node_modules/.installed
	mkdir -p build && $(BIN)/katz schema > build/schema.json
	cd $(EDITOR) && npm run --silent messages < ../../build/schema.json | diff - src/server/generated/messages.ts
	cd $(EDITOR) && npm run --silent lint && npm run --silent types && npm run --silent units && npm run --silent ids
	cd $(EDITOR) && npm run --silent build -- --outDir ../../build/editor --emptyOutDir --logLevel warn
	diff -r build/editor web/dist

editor-in-browser: setup
	@if ! node -e '$(NEW_ENOUGH)' 2> /dev/null || ! test -f $(EDITOR)/node_modules/.installed; \
	then echo "no packages for the editor: it is not tried in a browser"; \
	elif ! command -v chromium chromium-headless-shell > /dev/null; \
	then echo "no chromium: the editor is not tried in a browser"; \
	else cd $(EDITOR) && KATZ_PORT=8429 KATZ_SERVERS=2 e2e/serve.sh $(CURDIR)/$(BIN)/katz npm run --silent e2e; fi

# Writes what docs/ shows of plans and benches anew.
docs: setup
	$(BIN)/python -m katz_graph.cli.docs

clean:
	rm -rf build output
