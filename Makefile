# `make run` serves the example configuration, `make test` runs the tests: each gets what it needs first.
# A virtual environment lies in .venv, a helm (where the host has none) in .tools.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where somebody's environment says that compiled modules are not kept, each start of a server would compile all of them.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: run demo test check style types format bench bench-check soak dist clean

run: $(VENV)/run .tools/ready
	$(BIN)/python run.py --config examples/pilothouse.yaml

# A house with something to look at; its data directory is made up once and stays.
demo: $(VENV)/run .tools/ready
	@test -e .demo/complete || { rm -rf .demo && $(BIN)/python run.py --data-dir .demo demo && touch .demo/complete; }
	$(BIN)/python run.py --config examples/pilothouse.yaml --data-dir .demo

# One worker for each processor; the tests of a file stay together, since they share a server. The files go by their names:
# xdist would keep those with few tests for the end, and they are the long ones.
test: $(VENV)/test .tools/ready3
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

check: style types test

style: $(VENV)/test
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(VENV)/test
	$(BIN)/mypy

bench: $(VENV)/test .tools/ready3
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/everything.py

# Whether a ratio is worse than it was, by more than noise.
bench-check: $(VENV)/test .tools/ready3
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/everything.py --check

# The sdist, the wheel, and one executable with its own Python: for others, in dist/.
dist: $(VENV)/dist
	$(BIN)/python packing/dist.py

format: $(VENV)/test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run: setup.cfg setup.py | $(BIN)/python
	$(PIP) --editable '.[mcp]'
	@touch $@

$(VENV)/test: setup.cfg setup.py | $(BIN)/python
	$(PIP) --editable '.[test,dist]'
	@touch $@ $(VENV)/run $(VENV)/dist

$(VENV)/dist: setup.cfg setup.py | $(BIN)/python
	$(PIP) --editable '.[dist]'
	@touch $@

.tools/ready: .ci/fetch_helm.py | $(BIN)/python
	$(BIN)/python .ci/fetch_helm.py
	@mkdir -p .tools && touch $@

# The tests hold us to helm 3 as well.
.tools/ready3: .ci/fetch_helm.py | $(BIN)/python
	$(BIN)/python .ci/fetch_helm.py --with-helm3
	@mkdir -p .tools && touch $@

clean:
	rm -rf $(VENV) .tools build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
