# Plain `make` lists the targets. PROFILE=smoke|quick|full, RESULTS=runs/NAME, PYTHON=python3.12 may follow each.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup peers book html run reference reproduce readme test lint lock clean
SHELL := bash

PROFILE ?= quick
VENV    ?= .venv
BIN     := $(VENV)/bin
STUDY   := $(BIN)/python -m cachequant.study
READY   := $(VENV)/.ready
MAKEFLAGS += --no-print-directory

# no progress bars in notebooks and logs, this environment's kernel, none of the user's IPython start-up files
export TQDM_DISABLE := 1
export JUPYTER_PREFER_ENV_PATH := 1
export IPYTHONDIR := $(CURDIR)/notebooks/ipython
export CACHEQUANT_RESULTS := $(RESULTS)

help: ## list the targets
	@echo "usage: make TARGET [PROFILE=smoke|quick|full] [PYTHON=python3.12]"
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup: $(READY) ## create .venv, install the pinned packages, fetch the embedded model and text

$(READY): requirements.lock pyproject.toml
	@[ -x $(BIN)/python ] || { for p in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exec "$$p" -m venv $(VENV); \
	done; true; }
	@[ -x $(BIN)/python ] || { echo "error: cachequant needs Python 3.11 or newer$(if $(PYTHON), and $(PYTHON) is not); \
	name one: make setup PYTHON=/path/to/python3.12" >&2; exit 2; }
	@echo "installing the pinned packages into $(VENV) (minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m cachequant.assets
	@touch $@

peers: setup ## add CTranslate2, llama.cpp, quanto and HQQ to .venv; compiles llama.cpp (10 to 20 minutes)
	@$(BIN)/python tools/peers.py

book: setup ## compute what is out of date (PROFILE, 20 minutes at most by default), then the HTML
	@echo "compiling the kernels (a minute the first time)"
	@$(BIN)/cachequant doctor --warm >/dev/null
	@$(STUDY) compute --profile $(PROFILE)
	@$(MAKE) html
	@$(STUDY) report --profile $(PROFILE)

html: setup ## render the results that are there, without computing; RESULTS=runs/NAME shows a rerun
	@$(STUDY) stage
	@said=$$($(BIN)/jupyter-book build . -q -n -W --keep-going 2>&1) || \
	  { echo "$$said"; rm -rf _build/.doctrees; exit 1; }
	@echo "$(CURDIR)/_build/html/index.html"

run: setup ## rerun one notebook: make run NB=05_quality_grid P="max_tokens: 4096, window: 512" NAME=mine
	@[ -n "$(NB)" ] || { echo 'error: name a notebook: make run NB=05_quality_grid P="max_tokens: 4096"' >&2; exit 2; }
	@$(STUDY) run $(NB) --set runs/$(or $(NAME),latest) --profile $(PROFILE) --parameters "$$P"

reference: setup ## compute the published run into results/reference (hours, resumable); NB= for one notebook
	@$(STUDY) compute $(NB) --set reference --profile full
	@$(STUDY) summary --set reference

reproduce: setup ## compare local results with the reference within the tolerances of notebooks/tolerances.yaml
	@$(STUDY) reproduce

readme: setup ## write the headline figures of results/reference into README.md
	@$(STUDY) readme

test: setup ## run the whole test suite
	@$(BIN)/python -m pytest

lint: setup ## check style and layout of the code
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

lock: setup ## pin what .venv holds in requirements.lock and environment.yml
	@$(BIN)/python tools/lock.py

clean: ## remove the built book and unfinished work; results stay
	rm -rf _build book/executed results/.checkpoints
	@[ ! -d results ] || find results -name '.run-*' -prune -exec rm -rf {} +
