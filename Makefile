# make demo: install and run the main job. make test: install and run the whole check.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# In CI, the versions that are known to work.
CONSTRAINTS := $(if $(CI),-c .ci/constraints.txt)

.PHONY: demo test coverage test-pythons test-models lint types docs wheel audit lock bench test-gpu clean

demo: $(VENV)/.installed
	$(BIN)/bpc run --out runs/demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The same tests, and which lines they run; this takes about a third longer.
coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered

test-pythons: $(VENV)/.installed-dev
	.ci/pythons

# Models written for JAX, NumPyro, PyMC and Stan, whose packages are too large for every environment.
test-models: $(VENV)/.installed-dev
	.ci/models

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What is installed must be one package, with its data files.
wheel: $(VENV)/.installed
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python .ci/check_wheel.py dist/*.whl
	.ci/try_wheel

# Known vulnerabilities of what CI installs.
audit:
	.ci/audit

# After all checks passed with newer versions: what CI installs from then on.
lock: $(VENV)/.installed-dev $(VENV)/.installed-docs
	(head -1 .ci/constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//') > .ci/constraints.new
	mv .ci/constraints.new .ci/constraints.txt

bench: $(VENV)/.installed
	$(BIN)/bpc bench

# On a machine with a GPU, under that machine's own Python and torch.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[dev]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) .venv-* runs site build dist .coverage src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
