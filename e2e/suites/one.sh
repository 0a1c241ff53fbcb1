#!/usr/bin/env bash
# shellcheck disable=SC2034
# Runs one suite one way (straight, session or transaction) on servers of its own, and writes a line for each test.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suite=$1 way=$2 out=$3
source "$here/fetch.sh"
source "$here/servers.sh"

# What a suite may set: its accounts, all with one password, the database, and its longest time in seconds.
users=(postgres)
password=suite
database=suite
limit=1800
# shellcheck source=/dev/null
source "$here/suite/$suite.sh"

rm -rf "$out"
mkdir -p "$out"
fetch >"$out/install.log" 2>&1 || { tail -5 "$out/install.log" >&2 && exit 1; }
trap stop_servers EXIT
trap 'exit 130' INT TERM
start_postgres
create_accounts
if declare -F prepare >/dev/null; then
  prepare >"$out/prepare.log" 2>&1 || { tail -5 "$out/prepare.log" >&2 && exit 1; }
fi
port=$server_port
if [ "$way" != straight ]; then
  start_proxy "$way"
  port=$proxy_port
fi
cd "$home"
# Functions of the suite: `run` does the tests, `results` prints what became of each.
run >"$out/log" 2>&1 </dev/null || true
results >"$out/results"
[ -s "$out/results" ]
