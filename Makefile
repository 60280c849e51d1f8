# `make run` serves the example configuration, `make test` runs the tests. Each installs what it needs first: a virtual
# environment in .venv and, where the host has no helm, helm in .tools.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled modules are kept, whatever the environment says: else each start of a server would compile all of them.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check install

PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: run demo screenshots test check coverage proof style types format bench bench-check soak dist clean

run: $(VENV)/run .tools/ready
	$(BIN)/python run.py --config examples/pilothouse.yaml

# A server with made-up data, and a chat on this machine that gets its messages. Its data directory is filled once and kept.
demo: $(VENV)/run .tools/ready
	@test -e .demo/complete || { rm -rf .demo && $(BIN)/python run.py --data-dir .demo demo && touch .demo/complete; }
	@cat examples/pilothouse.yaml examples/demo.yaml > .demo/pilothouse.yaml
	$(BIN)/python run.py --config .demo/pilothouse.yaml --data-dir .demo

# One worker for each processor. The tests of a file stay together, since they share a server. Files run in the order of their
# names: xdist would start those with few tests last, and these take longest. TESTS names folders or files.
test: $(VENV)/test .tools/ready3 .tools/ready-oidc
	$(PYTEST) $(TESTS)

# The tests (or those of TESTS) with the lines and branches that they run counted: in this process, and in the servers that
# they start.
coverage: $(VENV)/test .tools/ready3 .tools/ready-oidc
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=$(CURDIR)/setup.cfg COVERAGE_DATA=$(CURDIR)/.coverage $(PYTEST) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

# What takes hours: the long rounds of the tests, the tests on every Python that is found, the README on bare machines.
proof: $(VENV)/test .tools/ready3 .tools/ready-oidc
	$(BIN)/python .ci/proof.py

check: style types test

style: $(VENV)/test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/codespell

types: $(VENV)/test
	$(BIN)/mypy

bench: $(VENV)/test .tools/ready3
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/everything.py

# Fails where a ratio is worse than the recorded one by more than noise.
bench-check: $(VENV)/test .tools/ready3
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/everything.py --check

# The pictures in docs/images: pages of a server with the sample data, light and dark.
screenshots: $(VENV)/test .tools/ready3
	$(BIN)/python .ci/screenshots.py

# Half an hour of mixed traffic: fails on an error, or where memory or descriptors grow.
soak: $(VENV)/test .tools/ready3
	$(BIN)/python benchmarks/soak.py

# Builds the sdist, the wheel, one executable with its own Python, a package for Debian and a container image, in dist/.
dist: $(VENV)/dist
	$(BIN)/python packing/dist.py

format: $(VENV)/test
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Without its pip an environment is half made: Debian's Python needs the package python3-venv for it.
$(BIN)/pip:
	@$(PYTHON) -c 'import ensurepip' || { echo "$(PYTHON) cannot make an environment (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/run: setup.cfg setup.py | $(BIN)/pip
	$(PIP) --editable '.[mcp]'
	@touch $@

$(VENV)/test: setup.cfg setup.py | $(BIN)/pip
	$(PIP) --editable '.[test,dist]'
	@touch $@ $(VENV)/run $(VENV)/dist

$(VENV)/dist: setup.cfg setup.py | $(BIN)/pip
	$(PIP) --editable '.[dist]'
	@touch $@

# 75: it could not be downloaded. The next run tries again.
OR_LATER = && mkdir -p .tools && touch $@ || [ $$? -eq 75 ]

.tools/ready: .ci/fetch_helm.py | $(BIN)/pip
	$(BIN)/python .ci/fetch_helm.py $(OR_LATER)

# The tests run against helm 3 as well.
.tools/ready3: .ci/fetch_helm.py | $(BIN)/pip
	$(BIN)/python .ci/fetch_helm.py --with-helm3 $(OR_LATER)

# The tests log in by a real identity provider.
.tools/ready-oidc: .ci/fetch_oidc_provider.py .ci/oidc_provider/package-lock.json | $(BIN)/pip
	$(BIN)/python .ci/fetch_oidc_provider.py $(OR_LATER)

clean:
	rm -rf $(VENV) .tools build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
