#!/usr/bin/env bash
# Prints the folder with the definitions of the Prometheus operator (PodMonitor, PrometheusRule), out of its Go module.
set -euo pipefail

module=github.com/prometheus-operator/prometheus-operator@v0.85.0
sum=h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=
answer=$(cd / && go mod download -json "$module")
[ "$(jq -r .Sum <<<"$answer")" = "$sum" ] || {
  echo "$module is not what it was" >&2
  exit 1
}
echo "$(jq -r .Dir <<<"$answer")/example/prometheus-operator-crd"
