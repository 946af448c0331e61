# Everything starts here: `make demo`, `make test`, `make check`. Needs Python 3.11+ with venv, and make.
# `make check` also needs Node.js with npm, and `make test-browser` Chromium as well.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Tests start hundreds of processes: without compiled files, each compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

# With another busy process, two BLAS threads wait for each other: one is fast everywhere.
demo test test-browser test-lowest check-extras coverage results mutants: export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test test-all test-browser test-lowest coverage check check-python check-code check-js check-schemas check-extras dist \
	results bench scaling mutants docs lighthouse serve clean

$(BIN)/python:
	@echo "Creating a virtual environment in $(VENV) and installing the requirements: a minute or so."
	@$(PYTHON) -m venv $(VENV)

# One stamp per set of requirements: they are installed again only when pyproject.toml changes.
$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing phitodeep with NumPy and rich ..."
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(PIP) install --editable ".[test]"
	@touch $@ $(VENV)/.demo

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install --editable ".[dev]"
	@touch $@ $(VENV)/.test $(VENV)/.browser $(VENV)/.demo

$(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(PIP) install --editable ".[bench]"
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.browser: pyproject.toml | $(BIN)/python
	$(PIP) install --editable ".[test,browser,docs]"
	@touch $@ $(VENV)/.test $(VENV)/.demo

# What package-lock.json names, for the explorer's JavaScript. npm writes this file last.
NODE := node_modules/.package-lock.json
$(NODE): package.json package-lock.json .npmrc
	@command -v npm >/dev/null || { echo "The explorer's JavaScript is checked with Node.js 18.18 or" \
		"newer and npm, but npm is missing. Install both (Debian and Ubuntu: apt-get install nodejs" \
		"npm). Without them, 'make test' and 'make check-python' run all other checks." >&2; exit 1; }
	npm ci --loglevel=error
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python examples/mnist.py

# Each of two processes begins with half of the tests, in the order of their files: what the tests of a
# file make once is made once, and xdist hands out thousands of tests at a time instead of one.
TWO := --numprocesses=2 --dist=worksteal

# What depends on kernels with their NumPy forms, then all tests with compiled kernels.
NUMERIC := tests/layers/test_contract.py tests/layers/test_references.py tests/layers/test_attention.py \
	tests/layers/test_recurrent.py tests/layers/test_windows.py tests/loss/test_loss.py \
	tests/optimization/test_optimizers.py tests/functional/test_functional.py \
	tests/test_recorded_trainings.py tests/test_gpt2_parity.py tests/test_resnet_parity.py
COMPUTED := derivative or dtype or buffers or reuse or pytorch or digits or finite or blocks \
	or windows or attention or functional or trainings or parity

test: $(VENV)/.test
	PHITODEEP_KERNELS=numpy PHITODEEP_TESTS=$${PHITODEEP_TESTS:-kernels} \
		$(BIN)/python -m pytest $(TWO) $(NUMERIC) -k "$(COMPUTED)"
	$(BIN)/python -m pytest $(TWO)

# The suite with the lowest versions that pyproject.toml allows, in an environment of its own, and what
# these need, as it was then: newer pyparsing warns of matplotlib 3.8.
LOWEST := $(VENV)-lowest
$(LOWEST)/.done: pyproject.toml | $(BIN)/python
	$(PIP) install uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --exclude-newer 2025-10-01 \
		--extra test pyproject.toml -o $(LOWEST)/versions.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python \
		--requirement $(LOWEST)/versions.txt --editable .
	@touch $@
test-lowest: $(LOWEST)/.done
	$(LOWEST)/bin/python -m pytest $(TWO)

# Every case of every test, and everything that is long by nature: hours.
test-all: export PHITODEEP_TESTS := all
test-all: test test-browser check-extras test-lowest mutants

# The explorer and the site: their JavaScript in Node, what builds the pages, then these in Chromium.
test-browser: $(VENV)/.browser $(NODE) docs
	$(BIN)/python tools/fetch_numpy_wheel.py node_modules/pyodide $(VENV)/pyodide
	npm test --silent
	PHITODEEP_SITE=site $(BIN)/python -m pytest --numprocesses=2 --dist=loadgroup \
		tests/website tests/browser

# Show the branches that no test takes, with NumPy kernels; examples that run are not tests.
coverage: $(VENV)/.test
	PHITODEEP_KERNELS=numpy $(BIN)/python -m pytest $(TWO) --cov --cov-report=term \
		--ignore-glob="*/test_examples*" --ignore=tests/test_benchmarks.py --ignore=tests/test_mutants.py

check: check-python check-js

check-python: check-code docs check-schemas dist

check-code: $(VENV)/.dev
	$(BIN)/python tools/count_lines.py
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check-js: $(NODE)
	npm run --silent lint

# Files that other programs read, against their schemas. `make check-js` lints the workflows too.
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor
RENDER := from rattler_build import Stage0Recipe, VariantConfig as V; \
	Stage0Recipe.from_file('conda/recipe.yaml').render(V())
check-schemas: $(VENV)/.dev
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).readthedocs .readthedocs.yml
	$(SCHEMA).citation-file-format CITATION.cff
	$(BIN)/python -c "$(RENDER)"

# What is published, in the folder dist/: built once, checked, and rendered as PyPI does.
dist: $(VENV)/.dev
	$(BIN)/python tools/check_wheel.py
	$(BIN)/twine check --strict dist/*

# Each extra alone, in a clean environment: ONLY picks some, such as ONLY="plot fast".
check-extras: | $(BIN)/python
	@$(BIN)/python tools/check_extras.py $(ONLY)

# The reference results: DATA names the folder with MNIST's four IDX files, ONLY some rows.
results: $(VENV)/.test
	$(BIN)/python benchmarks/results.py $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only $(ONLY))

# Compare with other frameworks, in about an hour: ONLY picks parts, such as ONLY="W1 epoch"; DATA
# names the folder with MNIST's four IDX files, for the cold start.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/bench.py $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only $(ONLY))

# How steps scale over processes, with a model of more of them, in about five minutes: ONLY picks some.
scaling: $(VENV)/.test
	$(BIN)/python benchmarks/scaling.py $(if $(ONLY),--only $(ONLY))

# Breaks what is not known to be noticed: CHANGED names a revision, for functions that differ from
# it, and FRESH=1 breaks everything again.
mutants: export PHITODEEP_TESTS := short
mutants: $(VENV)/.test
	$(BIN)/python tools/mutants.py $(if $(CHANGED),--changed $(CHANGED)) $(if $(FRESH),--fresh)

# The site, in the folder site/; `make serve` shows it and follows what you write.
docs: $(VENV)/.browser
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Scores of pages on a simulated phone, at least 95: PAGES names others, such as "layers/dense/".
# npx loads Lighthouse once. Leave the machine alone meanwhile; it takes minutes.
lighthouse: docs
	$(BIN)/python tools/lighthouse.py $(PAGES)

serve: $(VENV)/.dev
	$(BIN)/mkdocs serve --livereload

clean:
	rm -rf $(VENV) $(LOWEST) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .mutants .coverage node_modules
