# The index of every command. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build plugin test lint fmt clippy duplicates unit shell chart crd images cluster-up cluster-down e2e e2e-run cnpg demo demo-down bench suites fuzz oracle

CARGO := cargo
CLUSTER_NAME ?= pgrp
export CLUSTER_NAME

help: ## This list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F'\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

build: ## Both programs, optimised, in target/release
	$(CARGO) build --locked --release -p pgrouting-proxy -p pgrouting-operator

plugin: ## kubectl pgrp, optimised, in target/release (docs/kubectl-pgrp.md)
	$(CARGO) build --locked --release -p pgrouting-kubectl

test: ## Everything: lints, unit tests, chart, and the stories on a cluster of their own; ends in "N passed, N failed"
	@.ci/test

lint: fmt clippy shell duplicates ## Formatting, clippy, shellcheck, and no crate twice

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --locked --workspace --all-targets --keep-going -- -D warnings

unit: ## Tests that need no cluster
	PGBOUNCER_EXPORTER="$$(e2e/cluster/pgbouncer-exporter.sh)" $(CARGO) test --locked --no-fail-fast

duplicates:
	.ci/duplicates

shell:
	shellcheck .ci/run .ci/test .ci/duplicates $$(find e2e charts -name "*.sh") e2e/cluster/kubectl e2e/cluster/images/postgres-entrypoint

chart: ## Tests of the chart with the real Helm; no cluster
	PATH="$$(e2e/cluster/build.sh):$$PATH" $(CARGO) test --locked -p pgrouting-e2e --test chart

crd: ## The definition and docs/api.md, generated from the Rust types, and the chart's copy of the first
	$(CARGO) run --locked -q -p pgrouting-crds --bin crdgen >crds/pgroutingpools.yaml
	cp crds/pgroutingpools.yaml charts/pgrouting/files/pgroutingpools.yaml
	$(CARGO) run --locked -q -p pgrouting-crds --bin crdgen reference >docs/api.md

images: build ## Images of both programs, into the cache and into the cluster where one is up
	e2e/cluster/images.sh project
	e2e/cluster/images.sh import

cluster-up: ## A real one-node Kubernetes in a network namespace of its own (docs/cluster.md); prints its kubeconfig
	@e2e/cluster/up.sh

cluster-down: ## Ends it and removes every trace
	@e2e/cluster/down.sh

e2e: cluster-up images e2e-run ## The stories on the cluster, which stays up; STORY="scale drift" runs these only

e2e-run:
	@e2e/run.sh $(STORY)

cnpg: cluster-up images ## The story of a CloudNativePG cluster, which is built from its Go module
	@STORY_TIMEOUT=600 e2e/run.sh cnpg

demo: ## A pool under load to look at, with the next commands to try; CLUSTER=existing takes the one of KUBECONFIG
	@e2e/demo.sh up

demo-down: ## Ends the demo
	@e2e/demo.sh down

bench: ## The proxy against its peers under pgbench, about 15 minutes on a quiet machine; ARGS=--quick for two
	$(CARGO) build --locked --release -p pgrouting-proxy
	bench/run.py $(ARGS)

suites: ## Outside test suites through the proxy, compared with PostgreSQL itself (docs/suites.md); SUITES="pgx psycopg2" MODES=session
	$(CARGO) build --locked --release -p pgrouting-proxy
	e2e/suites/run.sh

FUZZ_TARGETS ?= wire startup
FUZZ_SECONDS ?= 600

oracle: ## Statements with a standby's verdict on each, through the proxy; ORACLE=FILE.jsonl.gz; writes docs/split.md
	ORACLE_DOC="$(CURDIR)/docs/split.md" $(CARGO) test -q --release --locked -p pgrouting-proxy --test oracle

fuzz: ## Random bytes against the readers of the wire, FUZZ_SECONDS=600 each; needs nightly and cargo-fuzz
	proxy/fuzz/seeds.py
	for target in $(FUZZ_TARGETS); do \
	  $(CARGO) +nightly fuzz run --fuzz-dir proxy/fuzz $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=1200 -timeout=10 || exit 1; \
	done
