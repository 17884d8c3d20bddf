# The same targets serve a laptop, the README and CI. `make` alone lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(or $(shell command -v python3.11 || command -v python3),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: scale help setup demo test test-chaos test-clients test-docs test-etcd test-page test-ray test-wheel check slow bench peers audit docs site families clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## Create .venv with everything pinned in constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@echo "setup: creating $(VENV) and installing meshnet (torch is about 200 MB; later runs skip this)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "setup: Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 5 -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 5 -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup ## Fetch the default model, run a 3-node mesh, ask it a question
	@$(BIN)/meshnet run "Explain in two sentences why the sky is blue." --nodes 3 --max-tokens 64

check: setup ## Format, lint, types, import layers, spelling
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/codespell src tests docs tools README.md CONTRIBUTING.md CHANGELOG.md changelog.d

test: setup ## Run the test suite, JOBS=2 tests at a time
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test-etcd: setup ## Run what needs etcd: three members, lost leaders, the page's commands; minutes
	@$(BIN)/python -m pytest -q -m etcd

test-page: setup ## The web page in a browser: chat, stop, a node killed; minutes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[page]'
	@$(BIN)/python -m tools.browser
	@$(BIN)/python -m pytest -q -m page

test-wheel: setup ## Build wheel and sdist, install the wheel in a clean environment, run a mesh; minutes
	@$(BIN)/python -m pytest -q -m wheel --timeout 1800

test-docs: setup ## Run every command of the docs, over loopback; minutes
	@$(BIN)/python -m pytest -q tests/docs -m 'slow or not slow'

test-clients: setup ## People's clients against a mesh, each in its own environment; minutes
	@$(BIN)/python -m tools.clients --write docs/clients.md

test-ray: ## Nodes kept by Ray, in .venv-ray: machines, shards and gateways killed; minutes
	@test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --retries 5 -c constraints.txt -e '.[dev,ray]'
	@OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -q -m ray

test-chaos: setup ## Storms of faults over real processes in network namespaces; an hour and less
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.chaos --events 51 --out benchmarks/results

slow: setup ## Run what takes longer: all families, all models, 12,000 simulated clusters; hours
	@$(BIN)/python -m pytest -q -m slow --timeout 3600
	@$(BIN)/meshnet simulate --seeds 1000 --faults calm
	@$(BIN)/meshnet simulate --seeds 1000 --faults storm
	@$(BIN)/meshnet simulate --seeds 10000 --faults churn

scale: setup ## Simulate meshes of ten, a hundred and a thousand nodes; minutes
	@rm -f $(VENV)/scale.jsonl
	@$(BIN)/python -m tools.scale_page --kept $(VENV)/scale.jsonl --write docs/scale

bench: setup ## Measure the acceptance table, flatness, split tax, killed nodes; an hour and more
	@$(BIN)/meshnet bench acceptance
	@$(BIN)/meshnet bench flatness
	@$(BIN)/meshnet bench split-tax
	@$(BIN)/python -m tools.kill_bench

audit: ## Ask the advisories about every version of constraints.txt; needs the network
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3'
	@.venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

peers: setup ## Build llama.cpp's servers, which the benchmarks run beside ours (minutes, once)
	@$(BIN)/python -m tools.peers

docs: setup ## Regenerate the pages that are generated, and check the rest
	@$(BIN)/python -m tools.docs

site: setup ## Build the docs as a site under site/; warnings are errors
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m tools.docs_site

families: setup ## Run every family split against unsplit, and write docs/families.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.family_matrix --write docs/families.md

clean: ## Remove the environment and caches of this checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
