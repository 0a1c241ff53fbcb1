#!/usr/bin/env bash
# Installs what the tests and the local cluster use from Debian. Asks apt only when something is missing.
set -euo pipefail

packages=(
  make gcc libc6-dev git curl ca-certificates openssl jq shellcheck procps util-linux
  # the cluster: network namespace, Services, pods
  iproute2 nftables iptables conntrack runc containernetworking-plugins
  # images without a registry
  mmdebstrap buildah
  # the proxy's tests start PostgreSQL servers of their own
  postgresql-15 postgresql-client-15
  # and compare their console with PgBouncer's
  pgbouncer
  # promtool checks and tries the chart's rules
  prometheus
  # and run a Django application
  python3-venv libpq5
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "missing: ${missing[*]}. Run as root: $0" >&2
  exit 1
fi
# Debian's package would start a server on port 5432; the tests want the programs only.
mkdir -p /etc/postgresql-common/createcluster.d
echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/no-main.conf
# Nor are PgBouncer and Prometheus to be started.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
