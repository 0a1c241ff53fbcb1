# shellcheck shell=bash disable=SC2154
# The PostgreSQL and the proxy of one run: on free ports of 127.0.0.1, with a data directory of their own.
binaries=/usr/lib/postgresql/15/bin
host=127.0.0.1
started=()

# PostgreSQL refuses to run as root.
as_postgres() {
  if [ "$EUID" -eq 0 ]; then
    exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@"
  fi
  exec "$@"
}

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_postgres() {
  work=$(mktemp -d "${TMPDIR:-/tmp}/pgrouting-suite.XXXXXX")
  echo "$password" >"$work/password"
  [ "$EUID" -ne 0 ] || chown -R postgres "$work"
  chmod 755 "$work"
  server_port=$(free_port)
  (cd "$work" && as_postgres "$binaries/initdb" -D "$work/data" -U postgres --pwfile="$work/password" \
    --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --no-locale --no-sync >"$out/initdb.log" 2>&1)
  (cd "$work" && as_postgres "$binaries/postgres" -D "$work/data" -p "$server_port" -k "$work" \
    -c listen_addresses=$host -c max_connections=300 -c fsync=off -c full_page_writes=off -c wal_level=logical \
    -c max_prepared_transactions=50 -c password_encryption=scram-sha-256 >"$out/postgres.log" 2>&1) &
  started+=($!)
  await 300 "$binaries/pg_isready" -q -h "$host" -p "$server_port"
}

# SQL as superuser, past the proxy.
admin() { # database, psql's arguments
  PGOPTIONS="-c client_min_messages=error" "$binaries/psql" -XqAt -v ON_ERROR_STOP=1 -h "$work" -p "$server_port" -U postgres -d "$@"
}

create_accounts() {
  local user
  for user in "${users[@]}"; do
    [ "$user" = postgres ] || admin postgres -v name="$user" -v password="$password" <<<"CREATE ROLE :\"name\" SUPERUSER LOGIN PASSWORD :'password'"
  done
  admin postgres -v name="$database" <<<"CREATE DATABASE :\"name\" TEMPLATE template0"
}

start_proxy() { # session or transaction
  # Pass-through, since tests make roles and log in as them.
  proxy_port=$(free_port)
  python3 - "$1" "$server_port" "$proxy_port" "$(free_port)" "$(free_port)" "$password" >"$work/proxy.yaml" <<'PYTHON'
import json, sys
mode, server, listen, admin, probe, password = sys.argv[1:]
print(json.dumps({
    "version": 1, "generation": 1, "pool": "suites",
    "process": {"listen": f"127.0.0.1:{listen}", "adminListen": f"127.0.0.1:{admin}", "probeListen": f"127.0.0.1:{probe}"},
    "servers": [{"name": "only", "host": "127.0.0.1", "port": int(server)}],
    "probe": {"user": {"name": "postgres", "password": password}},
    "auth": {"type": "Passthrough"},
    "pooling": {"mode": mode.capitalize(), "maxServerConnections": 200},
    "drainTimeout": "1s",
}))
PYTHON
  "$PROXY" --config "$work/proxy.yaml" >"$out/proxy.log" 2>&1 &
  started+=($!)
  PGPASSWORD=$password await 100 "$binaries/psql" -XqAt -h "$host" -p "$proxy_port" -U postgres -d postgres -o /dev/null -c "SELECT 1"
}

# Asks until the answer is good, so many times at most.
await() { # times, command
  local left=$1
  shift
  until "$@" 2>/dev/null; do
    left=$((left - 1))
    [ "$left" -gt 0 ] || { echo "did not start: $*" >&2 && return 1; }
    sleep 0.1
  done
}

# Ends what was started, last first: the proxy by SIGTERM twice, which ends its wait, PostgreSQL by SIGINT.
stop_servers() {
  local index pid
  for ((index = ${#started[@]} - 1; index >= 0; index--)); do
    pid=${started[index]}
    kill -TERM "$pid" 2>/dev/null || continue
    sleep 0.1
    kill -INT "$pid" 2>/dev/null || true
    kill -TERM "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  [ -z "${work:-}" ] || rm -rf "$work"
}
