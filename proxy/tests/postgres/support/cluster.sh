# Runs one PostgreSQL server in a directory of its own until standard input ends, then removes both.
#
# sh cluster.sh BIN PORT: a new primary; sh cluster.sh BIN PORT DIRECTORY PORT: a standby of the primary there.
# The first line of the output is the directory, once the server answers, or why there is none. Standard input is a
# pipe from the test process and ends with it however it ends, so that no server is left behind. Each line of it is a
# command, answered by a line when it is done: stop SIGNAL, start, follow DIRECTORY PORT (as a standby, from the next start
# on), copy DIRECTORY PORT (in place of what is there), freeze STOP or CONT.
set -u
bin=$1 port=$2
cd /
directory=$(mktemp -d "${TMPDIR:-/tmp}/pgrouting-postgres.XXXXXX") || exit 1
data=$directory/data log=$directory/log
trap 'rm -rf "$directory"' EXIT

fail() {
    echo "no server: $1: $(tail -n 5 "$log" | tr '\n' ' ')"
    exit 1
}

# copy DIRECTORY PORT: a copy of the primary there, that follows it.
copy() {
    rm -rf "$data"
    "$bin/pg_basebackup" -h "$1" -p "$2" -U postgres -D "$data" -R -X stream -c fast >"$log" 2>&1 || fail basebackup
}

start() {
    "$bin/postgres" -D "$data" -p "$port" -k "$directory" >>"$log" 2>&1 &
    server=$!
    until "$bin/pg_isready" -q -h 127.0.0.1 -p "$port"; do
        kill -0 "$server" 2>/dev/null || fail start
        sleep 0.05
    done
}

if [ $# -gt 2 ]; then
    copy "$3" "$4"
else
    printf %s 'postgres secret' >"$directory/password"
    "$bin/initdb" -D "$data" -U postgres -E UTF8 --no-locale --no-sync --no-instructions \
        --auth-local=trust --auth-host=scram-sha-256 --pwfile="$directory/password" >"$log" 2>&1 || fail initdb
    cat >>"$data/postgresql.conf" <<'SETTINGS'
listen_addresses = '127.0.0.1'
max_connections = 200
wal_level = replica
max_wal_senders = 4
wal_keep_size = 256MB
hot_standby = on
shared_buffers = 64MB
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
timezone = 'UTC'
log_min_messages = warning
SETTINGS
fi

start
echo "$directory"
while read -r command one two; do
    case $command in
    stop) kill -s "$one" "$server"; wait "$server" ;;
    start) start ;;
    copy) copy "$one" "$two" ;;
    follow)
        touch "$data/standby.signal"
        echo "primary_conninfo = 'host=$one port=$two user=postgres'" >>"$data/postgresql.auto.conf"
        ;;
    freeze) kill -s "$one" "$server" $(ps -o pid= --ppid "$server") ;;
    esac
    echo done
done
kill -CONT "$server" $(ps -o pid= --ppid "$server") 2>/dev/null
kill -QUIT "$server" 2>/dev/null
wait "$server"
