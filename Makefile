# Everything works in the project's own environment, .venv, built from the hashed lock files.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help run test check format bench lock wheel clean

help: ## Show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/run ## Start the service on an embedded PostgreSQL, at http://127.0.0.1:8000
	$(BIN)/python -m app.cli serve

test: .venv/dev ## Run the tests; ARGS="-k name" chooses among them
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: .venv/dev ## Format, lint, types, imports, container files
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m ruff check
	$(BIN)/python -m basedpyright
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

format: .venv/dev ## Format the code, and mend what can be mended without thinking
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

bench: .venv/dev ## Measure against the yardsticks; SIZE=1000000 for a million fingerprints
	$(BIN)/python -m bench --size $(SIZE)

lock: .venv/dev ## Renew the lock files from pyproject.toml
	$(BIN)/python -m uv pip compile $(LOCK) -o requirements.lock
	$(BIN)/python -m uv pip compile $(LOCK) --group dev -o requirements-dev.lock

wheel: .venv/dev ## Build the wheel into dist/
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

clean: ## Remove the environment and what tools left behind
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# The project itself is installed last, in place, by the build tools of the lock file.
INSTALL_PROJECT := $(PIP) install --no-deps --no-build-isolation --editable .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/run: requirements.lock pyproject.toml | .venv/bin/python
	$(PIP) install --require-hashes --requirement requirements.lock
	$(INSTALL_PROJECT)
	@touch $@

.venv/dev: requirements-dev.lock pyproject.toml | .venv/bin/python
	$(PIP) install --require-hashes --requirement requirements-dev.lock
	$(INSTALL_PROJECT)
	@touch $@ .venv/run

JOBS ?= 2
SIZE ?= 100000
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-header --extra embedded --group build --upgrade pyproject.toml
