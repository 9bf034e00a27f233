# Every target prepares .venv by itself, from a bare python3 (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: demo test check bench live help

help:
	@echo "make demo   a tour on a small real model, on this machine"
	@echo "make test   the test-suite"
	@echo "make check  format, lint, types, layers, tests with coverage, docs"
	@echo "make bench  speed and memory, against limits and peers"
	@echo "make live   the tests that need the real local model"

demo:
	@$(PYTHON) scripts/bootstrap.py local
	@$(BIN)/python examples/demo.py

test:
	@$(PYTHON) scripts/bootstrap.py dev
	@$(BIN)/python -m pytest -m "not live"

check:
	@$(PYTHON) scripts/bootstrap.py dev
	@$(BIN)/python scripts/check.py

bench:
	@$(PYTHON) scripts/bootstrap.py dev
	@$(BIN)/python -m bench

live:
	@$(PYTHON) scripts/bootstrap.py dev local
	@EXECUTIONKIT_REQUIRE_LIVE=1 $(BIN)/python -m pytest -m live
