PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev
LOWEST := .venv-lowest

.PHONY: demo test quick lowest fuzz check fmt docs site wheel bench clean

demo: $(BASE)
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

site: $(BASE)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build

# A wheel made from the sdist, installed into an empty environment and tried outside the checkout.
wheel: $(BASE)
	rm -rf dist build/wheel
	$(BIN)/pip install --quiet build
	$(BIN)/python -m build --installer pip
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd build/wheel && bin/mission-gym train CartPole-v1 --timesteps 4k --run-name smoke && bin/mission-gym eval smoke --episodes 5

$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $(BASE)

$(STAMP): $(BASE)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(LOWEST) build dist src/*.egg-info
