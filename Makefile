# The index of every command. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build test fmt clippy unit shell chart lint bench

CARGO := cargo
CLUSTER_NAME ?= pgrp
export CLUSTER_NAME

help: ## This list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

build: ## Both programs, optimised, in target/release
	$(CARGO) build --locked --release -p pgrouting-proxy -p pgrouting-operator

test: ## Everything: lints, unit tests, chart, and the stories on a cluster of their own; ends in "N passed, N failed"
	@.ci/test

lint: fmt clippy shell ## Formatting, clippy and shellcheck

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

unit: ## Tests that need no cluster
	$(CARGO) test --locked

shell:
	shellcheck .ci/run .ci/test $$(find e2e charts -name '*.sh')

bench: ## The proxy against its peers under pgbench, about 15 minutes on a quiet machine; ARGS=--quick for two
	$(CARGO) build --locked --release -p pgrouting-proxy
	bench/run.py $(ARGS)
