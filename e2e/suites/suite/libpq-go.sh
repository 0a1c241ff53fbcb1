# shellcheck shell=bash disable=SC2034,SC2154
# lib/pq's tests, from its Go module.
version=v1.12.3
# Names that its tests hold.
users=(postgres pqgo)
database=pqgo

install() {
  go_module github.com/lib/pq "$version"
  # A wait of 100 ms, whose end takes the whole package down, is short for a busy machine.
  sed -i '/^func wantEvent(/,/^}/s/100 \* time.Millisecond/10 * time.Second/' source/notify_test.go
}

prepare() {
  admin "$database" -c "CREATE EXTENSION hstore"
}

run() {
  # Where the driver looks by itself: whatever the environment says is in the strings that some tests compare.
  (umask 077 && echo "*:*:*:*:$password" >"$work/.pgpass")
  cd source || return
  GOCACHE=$(go env GOCACHE) GOMODCACHE=$(go env GOMODCACHE) HOME=$work \
    PGHOST=localhost PGPORT=$port PGUSER=pqgo PGDATABASE=$database PGSSLMODE=disable \
    timeout "$limit" go test -p 1 -count=1 -timeout 15m -json ./... >"$out/go.json"
}

results() {
  "$here/results.py" go "$out/go.json"
}
