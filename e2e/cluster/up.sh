#!/usr/bin/env bash
# A real Kubernetes of one node in a network namespace of its own: nothing it does can leave the machine.
# Safe to run twice: a healthy cluster is left alone, anything else is taken down first. Prints the kubeconfig's path.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
source "$here/network.sh"
source "$here/pki.sh"
source "$here/control-plane.sh"
source "$here/node.sh"

DAEMONS=(etcd apiserver controller-manager scheduler containerd kubelet kube-proxy)

start() { # name, command
  local name=$1
  shift
  # The shell enters the cgroups before it becomes the daemon, so that no child is ever outside.
  # shellcheck disable=SC2016
  FIRST=$CGROUP_OF_DAEMONS SECOND=$CPU_CGROUP/daemons setsid nsenter --net="$NETNS" \
    bash -c 'echo $$ >"$FIRST/cgroup.procs"; echo $$ >"$SECOND/cgroup.procs"; exec "$@"' "$name" "$@" \
    >>"$STATE/log/$name.log" 2>&1 </dev/null 9>&- &
  echo $! >"$STATE/pids/$name"
}

kube() { in_netns kubectl --kubeconfig="$KUBECONFIG_FILE" "$@"; }

is_healthy() {
  local name
  for name in "${DAEMONS[@]}"; do
    [ -f "$STATE/pids/$name" ] && grep -qx "$(cat "$STATE/pids/$name")" "$CGROUP_OF_DAEMONS/cgroup.procs" || return 1
  done
  kube wait --for=condition=Ready node/node0 --timeout=5s
}

cgroups_up() {
  local parent file
  for parent in "${CGROUPS[@]}"; do
    mkdir -p "$parent/$CLUSTER_NAME"
    for file in cpuset.cpus cpuset.mems; do
      [ ! -f "$parent/$file" ] || [ "${#CGROUPS[@]}" -eq 1 ] || cat "$parent/$file" >"$parent/$CLUSTER_NAME/$file"
    done
  done
  mkdir -p "$CGROUP_OF_DAEMONS" "$CPU_CGROUP/daemons"
  # Beside compilers that use every core, the cluster still gets its turn: probes and leases have deadlines.
  [ ! -f "$CPU_CGROUP/cpu.shares" ] || echo 8192 >"$CPU_CGROUP/cpu.shares"
  [ ! -f "$CPU_CGROUP/cpu.weight" ] || echo 800 >"$CPU_CGROUP/cpu.weight"
}

main() {
  local began=$SECONDS bin
  [ "$(id -u)" -eq 0 ] || { say "needs root: it makes a network namespace and mounts" && exit 1; }
  "$here/install.sh"
  mkdir -p "$(dirname "$STATE")" "$CACHE"
  exec 9>"$STATE.lock"
  flock 9
  bin=$("$here/build.sh" 9>&-)
  export PATH=$bin:$PATH
  "$here/images.sh" cluster 9>&-
  if is_healthy >/dev/null 2>&1; then
    say "is up already"
  else
    CLUSTER_LOCKED=1 "$here/down.sh"
    mkdir -p "$STATE"/{log,pids,etcd,kubelet}
    ln -sfn "$bin" "$STATE/bin"
    cgroups_up
    network_up
    pki_up
    containerd_up
    control_plane_up
    "$here/images.sh" import 9>&-
    kubelet_up
    kube_proxy_up
    wait_until 300 "no node is registered, see $STATE/log/kubelet.log" kube get node node0
    kube wait --for=condition=Ready node/node0 --timeout=60s >/dev/null
  fi
  kube apply --server-side -f "$here/coredns.yaml" >/dev/null
  kube -n kube-system rollout status deployment/coredns --timeout=90s >/dev/null
  say "ready after $((SECONDS - began)) s"
  echo "$KUBECONFIG_FILE"
}

main
