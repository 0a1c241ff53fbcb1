# shellcheck shell=bash disable=SC2034,SC2154
# pgbench in all its protocols: a case is good when no transaction fails and the sums are right.
version=15

install() { :; }

run() {
  export PGHOST=$host PGPORT=$port PGUSER=postgres PGPASSWORD=$password PGDATABASE=$database
  local seconds=${SUITE_SECONDS:-3} protocol script
  pgbench init -iq -s 5
  pgbench init-on-the-server -iq -s 5 -I dtGvp
  pgbench init-partitions -iq -s 5 --foreign-keys --partitions=4
  for protocol in simple extended prepared; do
    for script in tpcb-like simple-update select-only; do
      pgbench "$protocol $script" -n -M "$protocol" -b "$script" -c 8 -j 2 -T "$seconds"
    done
  done
  holds "balances add up" "SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts)
    = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)
    AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)"
  pgbench "a connection each" -C -n -b select-only -c 8 -j 2 -T "$seconds"
  scripts
  "$binaries/psql" -Xq -c "CREATE TABLE written (id bigserial PRIMARY KEY, client int)"
  pgbench "pipeline extended" -n -M extended -f "$work/pipeline.sql" -c 4 -T "$seconds"
  pgbench "pipeline prepared" -n -M prepared -f "$work/pipeline.sql" -c 4 -T "$seconds"
  pgbench "serializable with retries" -n -f "$work/serializable.sql" -c 4 --max-tries=0 -T "$seconds"
  pgbench "own writes are read" -n -f "$work/written.sql" -c 4 -T "$seconds"
}

pgbench() { # name, arguments
  local log=$work/case.log
  if "$binaries/pgbench" "${@:2}" >"$log" 2>&1 && ! grep -qE 'failed transactions: [1-9]|aborted' "$log"; then
    echo "ok $1"
  else
    echo "FAILED $1: $(grep -E "error|failed|aborted" "$log" | head -3 | tr "\n" " ")"
  fi
}

holds() { # name, SQL that is true
  if [ "$(admin "$database" -c "$2")" = t ]; then echo "ok $1"; else echo "FAILED $1"; fi
}

scripts() {
  cat >"$work/pipeline.sql" <<'SQL'
\set id random(1, 100000 * :scale)
\startpipeline
SELECT abalance FROM pgbench_accounts WHERE aid = :id;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;
SELECT abalance FROM pgbench_accounts WHERE aid = :id;
\endpipeline
SQL
  cat >"$work/serializable.sql" <<'SQL'
\set id random(1, 50)
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT abalance FROM pgbench_accounts WHERE aid = :id \gset
UPDATE pgbench_accounts SET abalance = :abalance + 1 WHERE aid = :id;
END;
SQL
  cat >"$work/written.sql" <<'SQL'
INSERT INTO written (client) VALUES (:client_id) RETURNING id \gset
SELECT count(*) AS found FROM written WHERE id = :id \gset
\if :found != 1
SELECT 1 / 0;
\endif
SQL
}

results() {
  "$here/results.py" plain "$out/log"
}
