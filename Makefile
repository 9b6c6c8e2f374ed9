# Targets are explained by the text after `##`; `make` alone prints them.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ridgeline-setup
# For `make test PYTEST_ARGS='-k prefix -x'` and `make up ARGS='--workers 2'`.
PYTEST_ARGS ?=
ARGS        ?=
# What some tests start: named when missing, and as root installed.
TEST_PROGRAMS := cc redis-server

export PYTHON

# A copied checkout must not run the code that it was copied from.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(shell rm -f $(STAMP))
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo up test test-long test-soak check ci lock proto pages resources format clean distclean test-programs

help: ## print this list
	@echo "Ridgeline. Start with: make demo"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with all that the targets below need (quick when nothing has changed)
	@echo "ready: $(VENV)"

$(STAMP): pyproject.toml requirements/ci.lock requirements/torch.txt scripts/bootstrap.py
	@command -v $(PYTHON) >/dev/null || { echo "setup: no $(PYTHON) here. Debian and Ubuntu: apt-get install python3 python3-venv" >&2; exit 2; }
	@scripts/system_programs.sh --required python3-venv
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV) --stamp $(STAMP)

demo: $(STAMP) ## start the platform on this machine, chat with a real model, show the prefix cache, stop
	@$(PY) -m ridgeline_cli demo $(ARGS)

up: $(STAMP) ## start the platform on this machine and keep serving (Ctrl-C stops it)
	@$(PY) -m ridgeline_cli up $(ARGS)

test-programs:
	@scripts/system_programs.sh $(TEST_PROGRAMS)

test: $(STAMP) test-programs ## the test suite, in minutes
	$(PY) -m pytest -m "not long and not soak" $(PYTEST_ARGS)

test-long: $(STAMP) test-programs ## fault suites and exact comparisons that take longer
	$(PY) -m pytest -m long $(PYTEST_ARGS)

test-soak: $(STAMP) test-programs ## what takes longer than CI may: hours of chaos, mutation testing
	$(PY) -m pytest -m soak --timeout=0 $(PYTEST_ARGS)

check: $(STAMP) ## lint, format, types, import layers
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) $(VENV)/bin/lint-imports

ci: check test test-long ## all that CI runs

lock: ## pin what CI installs again, after pyproject.toml has changed (LOCK_ARGS=--upgrade takes the newest)
	@scripts/lock.sh $(LOCK_ARGS)

proto: $(STAMP) ## regenerate the gRPC stubs from the .proto files
	@PYTHON=$(PY) scripts/proto.sh

pages: $(STAMP) ## write docs/plan anew from the topics of `ridgeline plan`
	$(PY) scripts/plan_pages.py

resources: $(STAMP) ## write the CRDs and docs/resources.md anew from the typed resources
	$(PY) scripts/resource_files.py

format: $(STAMP) ## format the code and mend what ruff can mend
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean: ## remove caches and build products
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
