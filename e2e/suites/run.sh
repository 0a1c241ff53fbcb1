#!/usr/bin/env bash
# Runs outside test suites straight against PostgreSQL and through the proxy, and compares: docs/suites.md.
# SUITES and MODES choose; STRAIGHT=kept takes the last straight run; PROXY names another binary.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/fetch.sh"

read -ra suites <<<"${SUITES:-psycopg2 asyncpg pg8000 libpq-go pgx tokio-postgres sqlalchemy pgjdbc pgbench sysbench pg_regress isolation django}"
read -ra modes <<<"${MODES:-session transaction}"
export PROXY=${PROXY:-$here/../../target/release/pgrouting-proxy}
[ -x "$PROXY" ] || { echo "suites: $PROXY is missing: make build" >&2 && exit 2; }

# Why a suite is not run in a mode; nothing where it is.
left_out() { # suite, mode
  sed -n "s/^$1\.$2  # //p" "$here/left-out.txt"
}

status=0
for suite in "${suites[@]}"; do
  [ -f "$here/suite/$suite.sh" ] || { echo "suites: there is no $suite" >&2 && exit 2; }
  kept=()
  for mode in "${modes[@]}"; do
    [ -n "$(left_out "$suite" "$mode")" ] || kept+=("$mode")
  done
  for way in straight "${kept[@]}"; do
    results=$cache/results/$suite/$way
    if [ "$way" = straight ] && [ "${STRAIGHT:-}" = kept ] && [ -s "$results/results" ]; then
      continue
    fi
    began=$SECONDS
    echo "--- $suite, $way" >&2
    # What a suite that broke off did not reach counts as different below.
    "$here/one.sh" "$suite" "$way" "$results" || echo "--- $suite, $way: broke off; see $results" >&2
    echo "--- $suite, $way: $((SECONDS - began)) s" >&2
  done
  "$here/compare.py" "$cache/results" "$suite" "${kept[@]}" || status=1
  for mode in "${modes[@]}"; do
    reason=$(left_out "$suite" "$mode")
    [ -z "$reason" ] || echo "  $mode: left out: $reason"
  done
done
exit "$status"
