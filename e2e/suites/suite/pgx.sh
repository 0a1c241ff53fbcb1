# shellcheck shell=bash disable=SC2034,SC2154
# The tests of pgx, from its Go module.
version=v5.13.0
# One account of theirs has all that is awkward in a connection string.
users=(postgres pgx_scram " tricky, ' } \" \\ test user ")
password=secret

install() {
  go_module github.com/jackc/pgx/v5 "$version"
}

prepare() {
  admin "$database" -c "CREATE EXTENSION hstore" -c "CREATE EXTENSION ltree" -c "CREATE DOMAIN uint64 AS numeric(20,0)"
}

run() {
  cd source || return
  local server="host=$host port=$port password=$password dbname=$database"
  # What is meant for a pooler runs at the same address.
  PGX_TEST_DATABASE="$server user=postgres" PGX_TEST_PGBOUNCER_CONN_STRING="$server user=postgres" \
    PGX_TEST_TCP_CONN_STRING="$server user=postgres" \
    PGX_TEST_SCRAM_PASSWORD_CONN_STRING="$server user=pgx_scram" \
    timeout "$limit" go test -p 1 -count=1 -timeout 15m -json ./... >"$out/go.json"
}

results() {
  "$here/results.py" go "$out/go.json"
}
