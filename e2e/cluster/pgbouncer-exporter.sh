#!/usr/bin/env bash
# Builds prometheus-community's pgbouncer_exporter from its Go module into the cache and prints its path; instant where it
# is there already, half a minute where it is not. The proxy's tests have it read the console.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

module=$root/e2e/pgbouncer-exporter
key=$({ go env GOVERSION; cat "$here/pgbouncer-exporter.sh" "$module/go.mod" "$module/go.sum"; } | sha256sum | cut -c1-16)
program=$CACHE/pgbouncer-exporter-$key/pgbouncer_exporter
mkdir -p "$(dirname "$program")"
exec 9>"$CACHE/pgbouncer-exporter.lock"
flock 9

if [ ! -x "$program" ]; then
  echo "building pgbouncer_exporter" >&2
  (cd "$module" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "-s -w" \
    -o "$program.new" github.com/prometheus-community/pgbouncer_exporter) >&2
  mv "$program.new" "$program"
fi
echo "$program"
