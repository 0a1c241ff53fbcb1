#!/usr/bin/env bash
# Builds the cluster's binaries from their Go modules into a cache outside the tree, keyed by what they are built from.
# Prints the folder that holds them. A second run finds them there and is instant.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${PGROUTING_CACHE:-$HOME/.cache/pgrouting}
mkdir -p "$cache"
exec 9>"$cache/cluster-build.lock"
flock 9

# The key covers the modules, the sources, this script and the compiler: any change builds anew.
key=$(cd "$here" && { go env GOVERSION; cat build.sh ./*/go.mod ./*/go.sum kubernetes/main.go; } | sha256sum | cut -c1-16)
bin=$cache/cluster-bin-$key
mkdir -p "$bin"

build() { # folder, output, package, extra go flags
  local folder=$1 output=$2 package=$3
  shift 3
  [ -x "$bin/$output" ] && return
  echo "building $output" >&2
  (cd "$here/$folder" && CGO_ENABLED=0 go build -mod=mod -trimpath "$@" -o "$bin/$output.new" "$package") >&2
  mv "$bin/$output.new" "$bin/$output"
}

version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$here/kubernetes/go.mod")
runtime_tags=no_btrfs,no_zfs,no_devmapper
build containerd containerd github.com/containerd/containerd/v2/cmd/containerd -tags "$runtime_tags" -ldflags "-s -w"
build containerd containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 -tags "$runtime_tags" -ldflags "-s -w"
build containerd ctr github.com/containerd/containerd/v2/cmd/ctr -tags "$runtime_tags" -ldflags "-s -w"
build kubernetes kube . -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(echo "$version" | cut -d. -f2)"
build etcd etcd go.etcd.io/etcd/server/v3 -ldflags "-s -w"
build helm helm helm.sh/helm/v4/cmd/helm -ldflags "-s -w"
build coredns coredns github.com/coredns/coredns -ldflags "-s -w"
for component in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
  [ -x "$bin/$component" ] && continue
  printf '#!/bin/sh\nexec "%s/kube" %s "$@"\n' "$bin" "$component" >"$bin/$component"
  chmod +x "$bin/$component"
done
echo "$bin"
