PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest

.PHONY: demo test quick lowest fuzz check fmt docs bench clean

demo: $(STAMP)
	$(BIN)/mission-gym demo

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal

quick: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/support/lowest_versions.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet -c constraints.txt -c $(LOWEST)/constraints.txt -e . pytest
	$(LOWEST)/bin/pytest tests/cli/test_clean.py tests/rollout/test_collectors.py tests/report/dashboard/test_server.py

fuzz: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal tests/fuzz --fuzz-minutes 10

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_architecture.py

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python docs/generate.py

bench: $(STAMP)
	$(BIN)/mission-gym bench ppo
	$(BIN)/mission-gym bench learning

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(LOWEST) build dist src/*.egg-info
