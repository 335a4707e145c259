# Two commands: `make demo` and `make test`. Either may be the first; it makes .venv by itself, from the pins and
# hashes of requirements.lock. `make help` names the others.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/sh

# A Python of 3.11 or newer; `make PY=/path/to/python demo` names another.
PY ?= python3.11
# Processes that run tests.
JOBS ?= auto
# With UV=1, uv installs instead of pip: faster, if it is there.
UV ?=
# More arguments for pytest: `make test PYTEST_ARGS='-k codel'`.
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_INPUT := 1

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
# A virtual environment does not survive a move of its folder, so the stamp's name depends on where it is.
STAMP := $(VENV)/.installed-$(shell pwd -P | cksum | cut -d' ' -f1)

NOTEBOOKS := $(wildcard notebooks/*.ipynb)
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 120 --timeout 180 \
	$(if $(wildcard notebooks/sanitize.cfg),--nbval-sanitize-with notebooks/sanitize.cfg)

.PHONY: picture help demo test test-slow soak lint format notebooks bench lab lock venv clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## Run the demonstration
	@$(BIN)/flowsim demo

test: lint ## Lint, types, layers, tests, notebooks, and PostgreSQL tests on the system's server too
	$(RUN) pytest -n $(JOBS) -m "not slow" $(PYTEST_ARGS)
ifneq ($(NOTEBOOKS),)
	$(RUN) pytest -p no:xdist $(NBVAL) $(NOTEBOOKS)
else
	@echo "no notebooks yet: nothing for nbval to check"
endif
	@folder=$$($(RUN) flowq.postgres.server --system) || folder=; \
	if [ -n "$$folder" ]; then \
		echo "once more on the system's PostgreSQL: $$folder"; \
		FLOWQ_PG_BIN="$$folder" $(RUN) pytest -n $(JOBS) -m "postgres and not slow" $(PYTEST_ARGS); \
		code=$$?; [ $$code -eq 5 ] || exit $$code; \
	else \
		echo "no PostgreSQL >= 15 of the system: its run is left out"; \
	fi

test-slow: $(STAMP) ## The tests that take longer
	$(RUN) pytest -n $(JOBS) --timeout 1800 -m slow $(PYTEST_ARGS); code=$$?; [ $$code -eq 5 ] || exit $$code

soak: $(STAMP) ## 200,000 jobs under random kills; prints the balance
	$(RUN) tests.soak $(SOAK_ARGS)

lint: $(STAMP) ## Style, types and layers
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## Put style right
	$(RUN) ruff check --fix
	$(RUN) ruff format

notebooks: $(STAMP) ## Run the notebooks again and keep their outputs, then check them twice
ifneq ($(NOTEBOOKS),)
	$(RUN) nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \
		$(NOTEBOOKS)
	$(RUN) pytest -p no:xdist $(NBVAL) $(NOTEBOOKS)
	$(RUN) pytest -p no:xdist $(NBVAL) $(NOTEBOOKS)
else
	@echo "no notebooks yet"
endif

picture: $(STAMP) ## Draw the README's picture again
	@$(BIN)/python -c 'from flowsim.scene import simulated; from flowsim.report import burst_figure; \
		burst_figure(simulated().results).savefig("notebooks/burst.png", dpi=90)'

bench: $(STAMP) ## Measure
	@if [ -f benchmarks/__main__.py ]; then $(RUN) benchmarks; else echo "no benchmarks yet"; fi

lab: $(STAMP) ## Open the notebooks in JupyterLab (installs it)
	@$(BIN)/python -c 'import jupyterlab' 2>/dev/null || $(RUN) pip install -qq 'jupyterlab>=4.3'
	$(BIN)/jupyter lab notebooks

lock: $(STAMP) ## Pin the newest versions of all dependencies (for maintainers)
	@uv=$$(command -v uv) || { uv=$(VENV)/uv/bin/uv; \
		[ -x "$$uv" ] || $(RUN) pip install -qq --target $(VENV)/uv uv; }; \
	"$$uv" --no-config pip compile --quiet --universal --python-version 3.11.0 --generate-hashes --upgrade \
		--extra analysis --extra parquet --extra cli --extra embedded --extra notebook --extra test --extra dev \
		--custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

venv: $(STAMP) ## Only make .venv

clean: ## Remove .venv and all that tools left behind
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian ships venv apart from Python. Without it `python3 -m venv` fails with the folder half made, and a plain
# `pip install` is refused there; `pip install --target` is not, so virtualenv comes that way.
$(STAMP): pyproject.toml requirements.lock
	@py='$(PY)'; \
	new='import sys; sys.exit(sys.version_info < (3, 11))'; \
	"$$py" -c "$$new" >/dev/null 2>&1 || { \
		[ '$(origin PY)' = file ] && py=python3 && "$$py" -c "$$new" >/dev/null 2>&1; \
	} || { \
		echo "make: a Python of 3.11 or newer is missing: '$(PY)' is not one$$( \
			[ '$(origin PY)' = file ] && echo ', nor is python3'). Install it (Debian: apt install python3" \
			"python3-pip), or name one: make PY=/path/to/python" >&2; \
		exit 1; \
	}; \
	rm -rf $(VENV); \
	if [ -n '$(UV)' ]; then \
		echo "making $(VENV) with uv ..."; \
		uv venv --quiet --python "$$(command -v "$$py")" $(VENV) && \
		uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock && \
		uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . || exit 1; \
	else \
		echo "making $(VENV) with $$("$$py" -V): about a minute, once ..."; \
		"$$py" -m venv $(VENV) >/dev/null 2>&1 || { \
			rm -rf $(VENV); \
			tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
			"$$py" -m pip install -qq --target "$$tools" virtualenv && \
			PYTHONPATH="$$tools" "$$py" -m virtualenv --quiet $(VENV); \
		} || { \
			echo "make: '$$py' has neither venv nor pip: install one (Debian: apt install python3-venv)" >&2; \
			exit 1; \
		}; \
		$(RUN) pip install -qq --require-hashes -r requirements.lock && \
		$(RUN) pip install -qq --no-deps --no-build-isolation -e . || exit 1; \
	fi; \
	touch $@
