# Everything there is to do here. `make` alone lists it.
#
# The programs come from .venv, which make fills from requirements.lock with Python 3.11 (another
# one: make book PYTHON=/path/to/python3.11). With an environment of your own, made for example
# from environment.yml, say where its programs are: make book BIN=$CONDA_PREFIX/bin
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book test lab notebooks record lint clean compiler

ifdef BIN
ENVIRONMENT :=
else
BIN := .venv/bin
ENVIRONMENT := .venv/installed
endif

help: ## List these tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

book: compiler $(ENVIRONMENT) ## Run the chapters on this machine and build the book
	@$(BIN)/python book/build.py

test: compiler lint ## Everything that needs no GPU: lint, tests, the notebooks replayed
	$(BIN)/python -m pytest -n 2 -m "not gpu"
	$(BIN)/python -m pytest --nbval --nbval-current-env \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks

lab: compiler $(ENVIRONMENT) ## Open the notebooks in JupyterLab
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks

notebooks: compiler $(ENVIRONMENT) ## Run the chapters and write notebooks/*.ipynb from the .py
	@$(BIN)/python book/build.py --pairs

record: ## Measure everything again (on a GPU machine, with its own python3)
	$(or $(PYTHON),python3) -m labkernels record --all

lint: $(ENVIRONMENT) ## Style, and which floor may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

clean: ## Remove what was built; the environment stays (rm -r .venv removes it)
	rm -rf _build _site dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -r {} +

# The compilers that labkernels/cuda/host.py tries, in its order.
COMPILERS := $(if $(filter default,$(origin CXX)),g++ clang++ c++,$(CXX))
compiler:
	@for cxx in $(COMPILERS); do \
	  echo 'int main() {}' | $$cxx -std=c++20 -fsyntax-only -x c++ - 2>/dev/null && exit 0; \
	done; \
	echo "No C++20 compiler (tried $(COMPILERS); g++ 10 and clang++ 11 will do)." \
	  "Debian: sudo apt install g++   macOS: xcode-select --install" >&2; exit 1

.venv/installed: requirements.lock pyproject.toml
	@set -e; is_3_11='import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))'; \
	if ! .venv/bin/python -c "$$is_3_11" 2>/dev/null; then \
	  for python in $(PYTHON) python3.11 python3 python none; do \
	    $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && break; \
	  done; \
	  if [ $$python = none ]; then \
	    echo "No Python 3.11, for which requirements.lock is made" \
	      "(found: $$(python3 -V 2>/dev/null || echo none))." \
	      "Debian: sudo apt install python3.11-venv   macOS: brew install python@3.11" >&2; exit 1; \
	  fi; \
	  $$python -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$$python cannot make a virtual environment: its venv module is missing." \
	      "Debian: sudo apt install python3.11-venv   macOS: brew install python@3.11" >&2; exit 1; }; \
	  echo "Making the environment in .venv from requirements.lock: some minutes, 2.5 GB."; \
	  $$python -m venv --clear .venv; \
	fi; \
	export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	pip="$(BIN)/python -m pip -q -q install"; \
	{ $$pip -r requirements.lock && $$pip --no-deps --no-build-isolation -e .; } \
	  >.venv/pip.log 2>&1 || { \
	  if grep -qiE 'from versions: none|connection|timed out|resolution' .venv/pip.log; then \
	    echo "pip reached no package index (.venv/pip.log): connect this machine to the network" \
	      "(behind a proxy: export HTTPS_PROXY=...), then give the same make command again." >&2; \
	  else \
	    echo "pip failed: $$(grep -m 1 ERROR .venv/pip.log) (.venv/pip.log has the rest)." >&2; \
	  fi; exit 1; }
	@touch $@
