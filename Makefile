# Everything sets itself up: `make figures/fig10.pdf` on a fresh clone makes .venv, measures, solves, runs and draws.
#
#   make figures/fig10.pdf                  one figure at the default scale
#   make figures                            all figures
#   make figures/fig10.pdf SCALE=tiny       3 minutes instead of 9 (shapes too small to conclude from)
#   make figures/fig10.pdf CORES=8          cores that Snakemake may use (default: all)
#   make figures/control_flow               control flow within compiled functions, against other systems (installs PyTorch)
#   make figures/fusion                     how far TVM's fusion is from the best grouping of operators (installs PyTorch)
#   make verify                             every network and optimizer against the plain step (at the tiny scale)
#   make test                               the tests, in minutes: every package, every promise of README.md
#   make test-all                           these with 100 random cases for each 10, deep networks, every network and optimizer,
#                                           and every test target below
#   make test-torch                         numbers against PyTorch in float64 (installs PyTorch in .venv-torch)
#   make test-view                          the page of `autotm view` in Chromium (installs Playwright; Chromium where it may)
#   make docs                               the documents as a site: build/site/index.html
#   make test-conda                         environments from envs/ for `snakemake --sdm conda` (installs py-rattler)
#   make setup-slurm                        what sends jobs to a Slurm cluster (optional, docs/cluster.md)
#   make setup-cuda                         what machines of kind cuda need besides, and NVIDIA's compiler (optional)
#   make test-cuda                          kernels for GPUs compiled, and calls held against NVIDIA's own bindings
#   make test-slurm                         a study on a Slurm of two nodes on this computer (as root, Debian or Ubuntu)
#   make test-vm                            real second memories, in a virtual machine (as root, Debian)
#   make setup | lint | lock | clean
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

CORES ?= $(shell nproc 2>/dev/null || echo 2)
SCALE ?=
VENV := .venv
BIN := $(VENV)/bin
UV := $(VENV)/bootstrap/bin/uv
# Targets go first: --config takes every word that follows it.
SNAKEMAKE = $(BIN)/snakemake --cores $(CORES)
CONFIG = $(if $(SCALE),--config scale=$(SCALE))

.PHONY: help setup setup-test setup-browser setup-slurm setup-cuda setup-torch setup-conda setup-docs figures verify
.PHONY: test test-all test-view test-conda test-slurm test-cuda test-vm test-torch lint schema formats rulegraph docs lock clean FORCE
help:
	@sed -n 's/^#   //p' Makefile

# --- environment -----------------------------------------------------------------------------------------------------
# A stamp a stage: the second call does nothing. uv comes from pip; where it cannot be had, pip does the same, slower.
# Bytecode is made now: where processes may not keep it (PYTHONDONTWRITEBYTECODE), each job would compile TVM, pandas and
# autotm. Packages' own tests would take as long again; a file that cannot be compiled says so where it is imported.
setup: $(VENV)/.run-stamp
setup-test: $(VENV)/.test-stamp
setup-browser: $(VENV)/.browser-stamp
setup-slurm: $(VENV)/.slurm-stamp
setup-cuda: $(VENV)/.cuda-stamp

$(VENV)/.made-stamp:
	@compiler=""
	for candidate in $${CXX:-} g++ gcc clang++ clang c++ cc; do
		if command -v $$candidate >/dev/null; then compiler=$$candidate; break; fi
	done
	if [ -z "$$compiler" ]; then
		echo "autotm: no C compiler found (tried \$$CXX, g++, gcc, clang++, clang, c++, cc); kernels are linked with one." >&2
		echo "        Remedy: sudo apt-get install g++, or your system's equivalent." >&2
		exit 1
	fi
	fits='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
	python=""
	for candidate in $${PYTHON:-} python3 python3.13 python3.12 python3.11; do
		if command -v $$candidate >/dev/null && $$candidate -c "$$fits" 2>/dev/null; then python=$$candidate; break; fi
	done
	if [ -z "$$python" ]; then
		echo "autotm: no Python 3.11, 3.12 or 3.13 with the venv module found (tried \$$PYTHON, python3, python3.13 ...)." >&2
		echo "        Remedy: sudo apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.12 ..." >&2
		exit 1
	fi
	echo "autotm: making $(VENV) with $$($$python -V)"
	mkdir -p $(VENV) # Both would make it, and one of them would then find it there and end.
	$$python -m venv $(VENV)/bootstrap & bootstrap=$$!
	$$python -m venv $(VENV)
	wait $$bootstrap
	$(VENV)/bootstrap/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt \
		|| echo "autotm: uv is not to be had; pip installs instead"
	touch $@

# install ENVIRONMENT FILE...: what the files lock, and autotm itself.
define install
if [ -x $(UV) ]; then
	$(UV) pip install --quiet --python $(1)/bin/python --require-hashes $(addprefix -r ,$(2))
	$(UV) pip install --quiet --python $(1)/bin/python --no-deps --no-build-isolation --editable .
else
	$(1)/bin/pip install --quiet --disable-pip-version-check --no-compile --require-hashes $(addprefix -r ,$(2))
	$(1)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
fi
$(call bytecode,$(1)/lib src)
endef
bytecode = $(BIN)/python -m compileall -q -j 0 -x '/(tests?|setuptools|pkg_resources|docutils)/' $(1) || true
.ONESHELL:

$(VENV)/.run-stamp: requirements/run.txt pyproject.toml $(VENV)/.made-stamp
	@$(call install,$(VENV),requirements/run.txt)
	touch $@

$(VENV)/.test-stamp: requirements/test.txt $(VENV)/.run-stamp
	@$(call install,$(VENV),requirements/test.txt)
	touch $@

$(VENV)/.browser-stamp: requirements/browser.txt $(VENV)/.test-stamp
	@$(call install,$(VENV),requirements/browser.txt)
	touch $@

$(VENV)/.slurm-stamp: requirements/slurm.txt $(VENV)/.run-stamp
	@$(call install,$(VENV),requirements/slurm.txt)
	touch $@

$(VENV)/.cuda-stamp: requirements/cuda.txt $(VENV)/.run-stamp
	@$(call install,$(VENV),requirements/cuda.txt)
	touch $@

# --- study -----------------------------------------------------------------------------------------------------------
# Snakemake knows what is out of date; make only passes the wish on.
FORCE:
figures/%.pdf: setup FORCE
	@$(SNAKEMAKE) $@ $(CONFIG)

figures: setup
	@$(SNAKEMAKE) figures $(CONFIG)

# Those of control flow compare with PyTorch, JAX and ONNX Runtime, which are in that environment.
TORCH_SNAKEMAKE = $(TORCH)/bin/python -m snakemake --cores $(CORES)
figures/control_flow/%.pdf: setup-torch FORCE
	@$(TORCH_SNAKEMAKE) $@ $(CONFIG)

figures/control_flow: setup-torch FORCE
	@$(TORCH_SNAKEMAKE) control_flow_figures $(CONFIG)

# Those of fusion look at blocks of networks that PyTorch's libraries define.
figures/fusion/%.pdf: setup-torch FORCE
	@$(TORCH_SNAKEMAKE) $@ $(CONFIG)

figures/fusion: setup-torch FORCE
	@$(TORCH_SNAKEMAKE) fusion_figures $(CONFIG)

# Results do not depend on sizes, so the smallest will do.
verify: setup
	@$(SNAKEMAKE) verification --config scale=$(or $(SCALE),tiny)

# --- development -----------------------------------------------------------------------------------------------------
# One process more than there are cores, since some wait for children; four at most, because one with TVM and a prepared
# study takes half a gigabyte. Rewriting assertions takes seconds, so what it made is kept.
WORKERS := $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 3 ? cores + 1 : 4)))
SLOWEST := --durations=25 --durations-min=5
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(SLOWEST)
# Every target leaves slow tests out, but for SLOW=1.
QUICK = $(if $(SLOW),,-m "not slow")
test: setup-test
	@# In the order of files: those with few tests are those with long ones, and must not come last, on one core.
	$(PYTEST) $(QUICK)

# Every test that this computer can run, each as thoroughly as it can: those of other environments too.
test-all: setup-test
	@status=0
	AUTOTM_TEST_EXAMPLES=all $(PYTEST) || status=1
	$(MAKE) --keep-going test-torch test-view test-conda test-slurm test-cuda test-vm SLOW=1 || status=1
	exit $$status

# What `make test` runs without a browser is left out. Playwright's own browsers come from a host that not everybody
# reaches; Debian's Chromium does as well.
test-view: setup-browser
	@if ! command -v chromium chromium-browser google-chrome >/dev/null && command -v apt-get >/dev/null; then
		as_root=$$([ "$$(id -u)" -eq 0 ] || echo "sudo -n")
		flock "$${TMPDIR:-/tmp}/autotm.apt.lock" sh -c "$$as_root apt-get update -qq \
			&& $$as_root apt-get install -qq -y --no-install-recommends chromium" >/dev/null \
			|| echo "!!! Chromium cannot be installed here: sudo apt-get install chromium"
	fi
	$(BIN)/pytest -q -rs $(QUICK) tests/study/view/test_page.py

test-slurm: setup-test setup-slurm
	@PYTHON=$(BIN)/python tests/slurm/run.sh $(QUICK)

# What NVIDIA's packages change nothing of is left out. No GPU is needed; where nvcc is not installed, that of the packages
# is taken.
test-cuda: setup-test setup-cuda
	@$(BIN)/pytest -q -rs $(QUICK) tests/kernels/cuda/test_nvcc.py \
		tests/control/test_cuda.py tests/memory/gpu/test_{cuda,opening}.py tests/runtime/streams/test_{launching,real_gpu}.py

# The guest that it boots sees this environment, read-only.
test-vm: setup-test
	@PYTHON=$(abspath $(BIN)/python) SLOW=$(SLOW) tests/vm/run.sh

# PyTorch, the yardstick, has an environment of its own: TVM imports it wherever it is installed, seconds a process.
# Everything else it finds in $(VENV).
TORCH := .venv-torch
$(TORCH)/.stamp: requirements/torch.txt $(VENV)/.test-stamp
	@$(BIN)/python -m venv $(TORCH)
	packages='import sysconfig; print(sysconfig.get_path("purelib"))'
	shared=$$($(BIN)/python -c "$$packages")
	echo "import site; site.addsitedir('$$shared')" > "$$($(TORCH)/bin/python -c "$$packages")/shared.pth"
	# pip's own settings choose which build of PyTorch comes, where a site sets them.
	$(TORCH)/bin/pip install --quiet --disable-pip-version-check --no-compile -r requirements/torch.txt
	$(call bytecode,$(TORCH)/lib)
	touch $@

setup-torch: $(TORCH)/.stamp

test-torch: setup-torch
	@# Of files that `make test` runs, too, those tests that need PyTorch or Optuna.
	$(TORCH)/bin/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(SLOWEST) $(QUICK) \
		tests/test_torch_models.py tests/lower/test_{against_torch,training_numerics}.py tests/zoo/test_{onnx,torch}*.py \
		tests/test_api_{compile,torch}.py tests/test_torch_{offload,arena,updates,fits,judging}.py tests/test_torch_schedules.py \
		tests/runtime/streams/test_framework.py tests/stages/test_{gpu,control_flow}.py tests/systems/test_systems.py \
		tests/control/test_function.py::test_networks_whose_blocks_are_skipped tests/fusion/test_learning.py \
		tests/fusion/test_search.py::test_{the_tuner_learns_from_what_it_tried,steps_depend_on_the_seed_and_on_energies_alone}

# Environments from envs/ as Snakemake makes them, with py-rattler in place of conda.
CONDA := .venv-conda
$(CONDA)/.stamp: requirements/conda.txt $(VENV)/.test-stamp
	@$(BIN)/python -m venv $(CONDA)
	$(CONDA)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/conda.txt
	touch $@

setup-conda: $(CONDA)/.stamp

test-conda: setup-conda
	@AUTOTM_TEST_RATTLER=$(abspath $(CONDA)/bin/python) $(BIN)/pytest -q -rs $(QUICK) tests/pipeline/test_conda.py

lint: setup-test
	@status=0
	$(BIN)/ruff check || status=1
	$(BIN)/ruff format --check || status=1
	$(BIN)/mypy || status=1
	$(BIN)/lint-imports --no-logo --no-cache .importlinter || status=1
	$(BIN)/snakemake --lint || status=1
	$(BIN)/snakefmt --check Snakefile workflow/Snakefile rules || status=1
	$(BIN)/hadolint Containerfile || status=1
	exit $$status

schema: setup
	@$(BIN)/autotm schema > config/schema.json

# --- documents -------------------------------------------------------------------------------------------------------
# The site has an environment of its own. What browsers run (mermaid draws diagrams, iframe-worker searches without a
# server) comes from npm, so that pages ask nothing of other hosts.
DOCS := .venv-docs
$(DOCS)/.stamp: requirements/docs.txt requirements/npm.sha512 $(VENV)/.made-stamp
	@$(BIN)/python -m venv $(DOCS)
	if [ -x $(UV) ]; then
		$(UV) pip install --quiet --python $(DOCS)/bin/python --require-hashes -r requirements/docs.txt
	else
		$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	fi
	if ! command -v npm >/dev/null; then
		echo "autotm: npm not found; it fetches what draws diagrams. Remedy: sudo apt-get install npm" >&2
		exit 1
	fi
	mkdir -p $(DOCS)/npm
	cd $(DOCS)/npm
	while read -r _ file; do
		package=$${file%.tgz}
		npm pack --silent "$${package%-*}@$${package##*-}" >/dev/null
		mkdir -p "$${package%-*}"
		tar -xzf "$$file" -C "$${package%-*}" --strip-components=1
	done <../../requirements/npm.sha512
	sha512sum --quiet --check ../../requirements/npm.sha512
	touch ../.stamp

setup-docs: $(DOCS)/.stamp

# The fields of every file, from the classes that read and write the files.
formats: setup
	@$(BIN)/python docs/site/formats.py > docs/formats.md.new
	mv docs/formats.md.new docs/formats.md

docs: setup-docs
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

# The figures' rules as a graph. Snakemake writes its lines in another order each time.
rulegraph: setup
	@{ printf '# Rules\n\nWhat `make figures` runs; written by `make rulegraph`.\n\n```mermaid\nflowchart TB\n'
	$(BIN)/snakemake --rulegraph mermaid-js figures | grep -P '^\t(?!style)' | sort --version-sort
	printf '```\n'; } > docs/rulegraph.md

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate
ENVS = figures measure solve
# The packages of one environment, a line each.
PINS = $(UV) pip compile --quiet --python-version 3.11 --python-platform linux -c requirements/run.txt --no-header --no-annotate \
	--no-emit-index-url
lock: setup
	@export UV_CUSTOM_COMPILE_COMMAND="make lock"
	$(LOCK) requirements/uv.in -o requirements/uv.txt
	$(LOCK) requirements/docs.in -o requirements/docs.txt
	$(LOCK) pyproject.toml requirements/build.in -o requirements/run.txt
	$(LOCK) pyproject.toml requirements/build.in --extra test -c requirements/run.txt -o requirements/test.txt
	$(LOCK) pyproject.toml requirements/build.in --extra browser -c requirements/run.txt -o requirements/browser.txt
	$(LOCK) pyproject.toml requirements/build.in --extra slurm -c requirements/run.txt -o requirements/slurm.txt
	$(LOCK) pyproject.toml requirements/build.in --extra cuda --extra nvcc -c requirements/run.txt -o requirements/cuda.txt
	$(LOCK) requirements/conda.in -o requirements/conda.txt
	for name in $(ENVS); do
		sed "s/NAME/$$name/" requirements/env.head.yaml > envs/$$name.yaml
		$(PINS) --group $$name | sed 's/^/      - /' >> envs/$$name.yaml
	done

clean:
	@rm -rf results figures logs .snakemake
