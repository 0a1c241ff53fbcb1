#!/usr/bin/env bash
# Ends the cluster and removes every trace of it, also of one whose up.sh was killed. Touches nothing of anyone else:
# it ends only processes in the cluster's own cgroups and unmounts only what is below its own state folder.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
source "$here/network.sh"

if [ -z "${CLUSTER_LOCKED:-}" ]; then
  mkdir -p "$(dirname "$STATE")"
  exec 9>"$STATE.lock"
  flock 9
fi

# Every process of the cluster: daemons and shims, and pods' processes.
processes() {
  local parent
  for parent in "${CGROUPS[@]}"; do
    [ ! -d "$parent/$CLUSTER_NAME" ] || find "$parent/$CLUSTER_NAME" -name cgroup.procs -exec cat {} + 2>/dev/null || true
  done | sort -un
}

end_processes() { # signal, attempts
  local pids
  for _ in $(seq "$2"); do
    mapfile -t pids < <(processes)
    [ "${#pids[@]}" -gt 0 ] || return 0
    kill "-$1" "${pids[@]}" 2>/dev/null || true
    sleep 0.2
  done
  return 1
}

remove_mounts() {
  local target
  # The deepest first; a path may be mounted over several times.
  awk '{ print $2 }' /proc/self/mounts | grep "^$STATE/" | sort -r | while read -r target; do
    umount -l "$target" 2>/dev/null || true
  done || true
}

# What the runtime keeps outside the state folder: runc's states, the shims' sockets, links to logs, results of CNI.
remove_leftovers() {
  local file
  for file in /run/containerd/runc/k8s.io/*/state.json; do
    ! grep -qs "$STATE/" "$file" || rm -rf "$(dirname "$file")"
  done
  find "$STATE/containerd/run" -name bootstrap.json -exec cat {} + 2>/dev/null |
    grep -o '/run/containerd/s/[0-9a-f]*' | xargs -r rm -f || true
  find /var/log/containers -lname "$STATE/*" -delete 2>/dev/null || true
  rm -f "/var/lib/cni/results/pods-$CLUSTER_NAME-"*
}

remove_cgroups() {
  local parent
  for parent in "${CGROUPS[@]}" /sys/fs/cgroup/unified; do
    [ ! -d "$parent/$CLUSTER_NAME" ] || find "$parent/$CLUSTER_NAME" -depth -type d -exec rmdir {} \; 2>/dev/null || true
  done
}

# The kubelet and the API server go first, so that nothing is started again while the rest ends.
for daemon in kubelet kube-proxy controller-manager scheduler apiserver; do
  pid=$(cat "$STATE/pids/$daemon" 2>/dev/null || true)
  [ -z "$pid" ] || ! grep -qsx "$pid" "$CGROUP_OF_DAEMONS/cgroup.procs" || kill -KILL "$pid" 2>/dev/null || true
done
end_processes KILL 50 || say "some processes do not end: $(processes | xargs)"
remove_mounts
remove_leftovers
network_down
remove_cgroups
rm -rf --one-file-system "$STATE"
