# `make run` serves the example configuration, `make test` runs the tests: each gets what it needs first.
# A virtual environment lies in .venv, a helm (where the host has none) in .tools.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: run test check format lint types bench clean

run: $(VENV)/run .tools/ready
	$(BIN)/python run.py --config examples/pilothouse.yaml

test: $(VENV)/test .tools/ready3
	$(BIN)/python -m pytest

check: $(VENV)/test .tools/ready3
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest

bench: $(VENV)/test
	$(BIN)/python benchmarks/supervision.py --install --out benchmarks/results.md

format: $(VENV)/test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run: setup.cfg setup.py | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/test: setup.cfg setup.py | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/run

.tools/ready: .ci/fetch_helm.py | $(BIN)/python
	$(BIN)/python .ci/fetch_helm.py
	@mkdir -p .tools && touch $@

# The tests hold us to helm 3 as well.
.tools/ready3: .ci/fetch_helm.py | $(BIN)/python
	$(BIN)/python .ci/fetch_helm.py --with-helm3
	@mkdir -p .tools && touch $@

clean:
	rm -rf $(VENV) .tools build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
