# Everything a newcomer needs: `make demo`, `make test`. Each target first makes .venv, once.

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= Explain to a curious child why the sky is blue during the day and red in the evening.
# Draft passes a round in the demo: what can be simulated in a few minutes; a card has time for more.
PASSES ?= 3
# Test workers. More than there are cores only makes simulations slower.
JOBS ?= 2

RUN := $(VENV)/bin/python
PYTEST := $(RUN) -m pytest -n $(JOBS) --maxschedchunk=1

.PHONY: help setup demo test test-slow test-all bench lint format clean distclean

help:
	@echo "make demo       decode with the draft in simulated hardware, check against target-only"
	@echo "make test       all quick tests, simulations among them"
	@echo "make test-slow  the tests that take minutes each"
	@echo "make bench      measure"
	@echo "make lint       ruff and mypy;  make format rewrites files"
	@echo "make clean      remove results and caches;  make distclean also .venv"

setup:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "no $(PYTHON): install Python 3.11 (apt-get install python3 python3-venv)" >&2; exit 2; }
	@$(PYTHON) -m tools.setup_env $(VENV)

demo: setup
	@$(RUN) -m dfvg_host.cli decode --device rtl --config sim --check --chat --max-new-tokens 64 \
	  --passes-per-round $(PASSES) --prompt "$(PROMPT)"

test: setup
	$(PYTEST) -m "not slow"

test-slow: setup
	$(PYTEST) -m slow

test-all: setup
	$(PYTEST)

bench: setup
	@$(RUN) -m dfvg_host.bench

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
