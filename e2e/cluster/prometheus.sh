#!/usr/bin/env bash
# Builds a Prometheus server from its Go module into the cache and prints its path; instant where it is there already.
# Its module is outside this folder because the key of build.sh covers every module in it: a change to this one must not
# build Kubernetes anew.
# The tag leaves out all service discoveries but those by file and by HTTP. The server's web pages are left out too.
# go.mod lists what a build with that tag needs; `go mod tidy` ignores tags and would add what all the discoveries need.
set -euo pipefail
source "$(dirname "$0")/settings.sh"

module=$root/e2e/prometheus
key=$({ go env GOVERSION; cat "$here/prometheus.sh" "$module/go.mod" "$module/go.sum"; } | sha256sum | cut -c1-16)
program=$CACHE/prometheus-$key/prometheus
mkdir -p "$(dirname "$program")"
exec 9>"$CACHE/prometheus.lock"
flock 9

if [ ! -x "$program" ]; then
  echo "building prometheus" >&2
  # Module v0.316.0 is Prometheus 3.16.0.
  version=$(sed -n 's|^\tgithub.com/prometheus/prometheus v0\.30\{0,1\}\([0-9]*\.[0-9]*\).*|3.\1|p' "$module/go.mod")
  (cd "$module" && CGO_ENABLED=0 go build -mod=readonly -trimpath -tags remove_all_sd \
    -ldflags "-s -w -X github.com/prometheus/common/version.Version=$version" \
    -o "$program.new" github.com/prometheus/prometheus/cmd/prometheus) >&2
  mv "$program.new" "$program"
fi
echo "$program"
