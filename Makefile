# The tasks of this repository. `make` alone lists them.
#
# The programs come from .venv, which make fills from requirements.lock, by uv if it is installed
# and else by pip, with Python 3.11 to 3.13 (to choose: make book PYTHON=/path/to/python3.12).
# For an environment of your own, made for example from environment.yml, say where its programs are:
# make book BIN=$CONDA_PREFIX/bin
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book pdf test test-all fuzz coverage lab notebooks times record lint format clean lock compiler

ifdef BIN
ENVIRONMENT :=
else
BIN := .venv/bin
ENVIRONMENT := .venv/installed
endif

help: ## List these tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: compiler $(ENVIRONMENT) ## Run the chapters here and build the book (FROM=folder: an edition)
	@$(BIN)/python book/build.py $(if $(FROM),--from $(FROM))

pdf: book ## Print the built pages into one PDF, with a Chromium that is installed
	@$(BIN)/python book/pdf.py

test: compiler lint ## Before a change lands: lint, tests without a GPU, chapters replayed in nbval
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"
	@$(BIN)/python book/build.py --nbval

# Marks that -m names are not left out: see tests/conftest.py.
test-all: book lint ## Each night: every tile, policy and format, delivery, the built pages, fuzz
	$(BIN)/python -m pytest -n 2 --dist worksteal \
	  -m "not gpu and (long or site or not (long or site))"
	@$(BIN)/python book/build.py --nbval
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600)

fuzz: compiler $(ENVIRONMENT) ## Compare random calls with float64 for an hour (or SECONDS=60)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600)

# Every Python process counts its own lines, and every program that cxx.sh compiles counts its own.
COUNTS := $(CURDIR)/_build/coverage
COUNTED := CHECKOUT=$(CURDIR) COVERAGE_FILE=$(COUNTS)/lines
COUNTING := $(COUNTED) COVERAGE_PROCESS_START=$(CURDIR)/tests/coverage/settings.ini \
  PYTHONPATH=$(CURDIR)/tests/coverage:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) \
  CXX=$(CURDIR)/tests/coverage/cxx.sh GCOV_PREFIX=$(COUNTS)/machine LABKERNELS_CACHE=$(COUNTS)/cache
coverage: compiler $(ENVIRONMENT) ## Say which lines no test runs (TESTS=folders, JOBS=16, ADD=1)
	$(if $(ADD),,rm -rf $(COUNTS))
	-$(COUNTING) $(BIN)/python -m pytest -q -p tests.coverage.patience -n $(or $(JOBS),auto) \
	  --dist worksteal -m "not gpu or long" $(TESTS)
	$(COUNTED) $(BIN)/python -m coverage combine -q --append $(COUNTS)
	$(COUNTED) $(BIN)/python -m coverage report --skip-covered --show-missing --sort=-miss
	$(BIN)/python -m tests.coverage $(COUNTS)/machine

lab: compiler $(ENVIRONMENT) ## Open the notebooks in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/start_here.ipynb

# On a GPU machine labkernels is this folder, not a package of the machine's own Python.
notebooks: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
notebooks: compiler $(ENVIRONMENT) ## Run the chapters, write notebooks/*.ipynb (TO=folder: an edition)
	@$(BIN)/python book/build.py $(if $(TO),--to $(TO),--pairs)

times: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
times: compiler $(ENVIRONMENT) ## Run the chapters one at a time, and write to data/ how long each takes
	@$(BIN)/python book/time_chapters.py $(NAMES)

course: $(ENVIRONMENT) ## Write a course for nbgrader, with slides (TO=folder SEED=number)
	@$(BIN)/python book/course.py $(if $(TO),--to $(TO)) $(if $(SEED),--seed $(SEED))

record: ## Measure everything again (on a GPU machine; without git: COMMIT=hash)
	$(or $(PYTHON),python3) -m labkernels record --all $(if $(COMMIT),--commit $(COMMIT))

CUDA_AND_CPP = $(shell find labkernels tests -name '*.cu' -o -name '*.cuh' -o -name '*.[ch]pp' \
  -o -name '*.h')
lint: $(ENVIRONMENT) ## Style, spelling, types, and which floor may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(CUDA_AND_CPP)
	$(BIN)/lint-imports
	$(BIN)/mypy --config-file .mypy-basic.ini & basic=$$!; \
	  $(BIN)/mypy; strict=$$?; wait $$basic && exit $$strict
	$(BIN)/codespell
	$(BIN)/deptry .

format: $(ENVIRONMENT) ## Lay out Python, CUDA and C++ as lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CUDA_AND_CPP)

clean: ## Remove what was built; the environment stays (rm -r .venv removes it)
	rm -rf _build _site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -r {} +

# The compilers that labkernels/cuda/host/build.py tries, in its order.
COMPILERS := $(if $(filter default,$(origin CXX)),g++ clang++ c++,$(CXX))
compiler:
	@for cxx in $(COMPILERS); do \
	  echo 'int main() {}' | $$cxx -std=c++20 -fsyntax-only -x c++ - 2>/dev/null && exit 0; \
	done; \
	echo "No C++20 compiler (tried $(COMPILERS); g++ 10 and clang++ 11 will do)." \
	  "Debian: sudo apt install g++   macOS: xcode-select --install" >&2; exit 1

# Programs and links of an environment name its folder, so that in a checkout that was moved or
# copied they lead to another place. A link to the environment of another checkout is removed, since
# the new environment would be made inside that one.
LIVED := $(shell cat .venv/lib/python*/site-packages/_labkernels.pth 2>/dev/null)
MOVED := $(filter-out $(CURDIR),$(LIVED))
.PHONY: moved
moved:
	@echo "The environment in .venv is that of $(MOVED); it is made again for $(CURDIR)."

LOCKED_FOR := >=3.11,<3.14
# Most of the 14,000 modules are never imported; pip would compile all of them, for a minute.
# torch alone may come from another index, such as that of its CPU build: make book
# TORCH_INDEX=address. All packages that this build needs are in the lock, with hashes, so that no
# second index is asked for them.
FROM_TORCH_INDEX := $(if $(TORCH_INDEX),$(foreach v,PIP_INDEX_URL UV_DEFAULT_INDEX,$v=$(TORCH_INDEX)))
.venv/installed: requirements.in requirements.lock pyproject.toml $(if $(MOVED),moved)
	@set -e; fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'; \
	uv=$$(command -v uv || true); \
	if [ -n "$(MOVED)" ] || ! .venv/bin/python -c "$$fits; import pip" 2>/dev/null; then \
	  echo "Making the environment in .venv from requirements.lock: some minutes, 2.5 GB."; \
	  if [ -L .venv ]; then rm .venv; fi; \
	  if [ -n "$$uv" ]; then \
	    $$uv venv -q --seed --clear --python '$(or $(PYTHON),$(LOCKED_FOR))' .venv || { \
	      echo "uv made no environment, for the reason above (behind a proxy with its own" \
	        "certificates: export UV_SYSTEM_CERTS=1). Without uv in PATH, make uses pip." >&2; \
	      exit 1; }; \
	  else \
	    for python in $(PYTHON) python3.11 python3.12 python3.13 python3 python none; do \
	      $$python -c "$$fits" 2>/dev/null && break; \
	    done; \
	    if [ $$python = none ]; then \
	      echo "No Python 3.11 to 3.13, for which requirements.lock is made" \
	        "(found: $$(python3 -V 2>/dev/null || echo none))." \
	        "Debian: sudo apt install python3.11-venv   macOS: brew install python@3.11" >&2; exit 1; \
	    fi; \
	    $$python -c 'import ensurepip, venv' 2>/dev/null || { \
	      echo "$$python cannot make a virtual environment: its venv module is missing." \
	        "Debian: sudo apt install python3.11-venv   macOS: brew install python@3.11" >&2; exit 1; }; \
	    $$python -m venv --clear .venv; \
	  fi; \
	fi; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	install="$(BIN)/python -m pip -q -q install --no-compile"; \
	if [ -n "$$uv" ]; then install="$$uv pip install -q --python $(BIN)/python"; fi; \
	{ $$install --require-hashes -r requirements.lock && \
	  env $(FROM_TORCH_INDEX) $$install $(if $(TORCH_INDEX),--no-deps) \
	    $$(grep ^torch== requirements.in) && \
	  $$install --no-deps --no-build-isolation -e .; } >.venv/install.log 2>&1 || { \
	  if grep -qiE 'from versions: none|connection|timed out|resolution|failed to fetch' \
	    .venv/install.log; then \
	    echo "No package index was reached (.venv/install.log): connect this machine to the network" \
	      "(behind a proxy: export HTTPS_PROXY=...), then give the same make command again." >&2; \
	  else \
	    echo "Installing failed: $$(grep -im 1 error .venv/install.log)" \
	      "(.venv/install.log has the rest)." >&2; \
	  fi; exit 1; }
	@touch $@

# Packages that torch's CUDA build brings at versions that it pins, and its CPU build does not need.
TORCHS_CUDA := cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
  nvidia-nvshmem-cu13
lock: ## Resolve requirements.in into requirements.lock (with uv)
	printf '%s\n' $(TORCHS_CUDA) | UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile -q \
	  --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-emit-package torch --excludes /dev/stdin requirements.in -o requirements.lock
