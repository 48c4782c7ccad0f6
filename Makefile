.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench docs

run := .venv/bin

help: ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## Make .venv with everything in it (brings uv when there is none)
	@scripts/setup

demo: setup ## Real Dynamo on mockers, a load spike, and the dashboard on it
	@$(run)/poascope demo

test: lint ## The whole suite: lint, types, import rules, unit, real clusters, real browser
	@$(run)/python -m tests

lint: ## Format, lint, types and the import rules
	@scripts/setup --test
	@$(run)/ruff format --check .
	@$(run)/ruff check .
	@$(run)/mypy
	@$(run)/lint-imports --no-logo

bench: setup ## Benchmarks; each prints ratios against something else in the same run
	@for b in $(filter-out bench/naive.py,$(wildcard bench/*.py)); do echo "== $$b"; $(run)/python $$b || exit 1; done

docs: setup ## Write the generated parts of docs/ anew
	@$(run)/python scripts/docs.py
