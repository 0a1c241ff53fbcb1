# shellcheck shell=bash disable=SC2034
# Names, places and addresses of the local cluster; every script here reads them from this file.
# CLUSTER_NAME picks one of several clusters of a machine: each has its own network namespace, state and cgroups.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

CLUSTER_NAME=${CLUSTER_NAME:-pgrp}
[[ $CLUSTER_NAME =~ ^[a-z][a-z0-9-]{0,14}$ ]] || {
  echo "CLUSTER_NAME must be 1 to 15 lower-case letters, digits and dashes" >&2
  exit 1
}
CACHE=${PGROUTING_CACHE:-$HOME/.cache/pgrouting}
STATE=/var/tmp/pgrouting-cluster/$CLUSTER_NAME
NETNS=/run/netns/$CLUSTER_NAME
SOCKET=$STATE/containerd/containerd.sock
KUBECONFIG_FILE=$STATE/admin.kubeconfig

NODE_IP=192.0.2.1
POD_CIDR=198.18.0.0/16
SERVICE_CIDR=198.19.0.0/16
API_IP=198.19.0.1
DNS_IP=198.19.0.10

# Every process of the cluster, pods included, is in a cgroup below this one: that is how down.sh knows its own.
if [ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ]; then
  CGROUPS=(/sys/fs/cgroup)
else
  CGROUPS=()
  for controller in /sys/fs/cgroup/*/; do
    [ -L "${controller%/}" ] || [ "${controller%/}" = /sys/fs/cgroup/unified ] || CGROUPS+=("${controller%/}")
  done
fi
CGROUP_OF_DAEMONS=$([ -d /sys/fs/cgroup/pids ] && echo /sys/fs/cgroup/pids || echo "${CGROUPS[0]}")/$CLUSTER_NAME/daemons
CPU_CGROUP=$([ -d /sys/fs/cgroup/cpu ] && echo /sys/fs/cgroup/cpu || echo "${CGROUPS[0]}")/$CLUSTER_NAME

say() { echo "cluster $CLUSTER_NAME: $*" >&2; }

in_netns() { nsenter --net="$NETNS" "$@"; }

# Tries a command until it succeeds: attempts, a fifth of a second apart, then what to say when it never does.
wait_until() {
  local attempts=$1 failure=$2
  shift 2
  for _ in $(seq "$attempts"); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  say "$failure"
  return 1
}
