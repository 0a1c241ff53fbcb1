#!/usr/bin/env bash
# Container images without a registry: built by buildah into archives, imported into the cluster's containerd.
#   images.sh cluster   what the cluster and the tests run: pause, CoreDNS, PostgreSQL; kept in the cache
#   images.sh cnpg      CloudNativePG, built from its Go module; kept in the cache
#   images.sh project   both programs of target/release on a small Debian base
#   images.sh import    all of these into the running cluster, those that are new to it
#   images.sh push HOST/PATH   programs and PostgreSQL to a registry, for a cluster of one's own
# An archive's name holds a key over everything it is made from, so a second build of the same finds it there.
# shellcheck disable=SC2016 # the hooks of mmdebstrap expand $1 themselves
set -euo pipefail
source "$(dirname "$0")/settings.sh"

export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
archives=$CACHE/images
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)

candidate() { apt-cache policy "$1" | sed -n 's/^ *Candidate: //p'; }

key() { # files and words
  local word
  for word in "$@"; do
    if [ -f "$word" ]; then cat "$word"; else echo "$word"; fi
  done | sha256sum | cut -c1-16
}

# Builds one target of a Containerfile into an archive.
image() { # archive, reference, containerfile, target, context, extra arguments
  local archive=$1 reference=$2 containerfile=$3 target=$4 context=$5
  shift 5
  say "building $reference"
  buildah build -q --layers=false --timestamp 0 --target "$target" -t "$reference" -f "$containerfile" "$@" "$context" \
    >/dev/null
  rm -f "$archive.new"
  buildah push -q "$reference" "docker-archive:$archive.new:$reference" >/dev/null
  buildah rmi -f "$reference" >/dev/null
  mv "$archive.new" "$archive"
}

# The folder of this run that contexts are laid out in.
workspace() {
  work=$(mktemp -d /var/tmp/pgrouting-images.XXXXXX)
  trap 'rm -rf "$work"' EXIT
}

# Debian packages as a tar file: no device nodes, documentation or package lists.
debian() { # tar file, variant, packages, further arguments
  local tar=$1 variant=$2 packages=$3
  shift 3
  mmdebstrap --quiet --variant="$variant" --include="$packages" --skip=output/dev --format=tar \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$@" bookworm "$tar"
}

# The unprivileged user that every image runs as.
user_hook='echo "pgrouting:x:65532:65532::/nonexistent:/usr/sbin/nologin" >>"$1/etc/passwd"
echo "pgrouting:x:65532:" >>"$1/etc/group"'

cluster_images() {
  local bin archive
  bin=$("$here/build.sh" 9>&-)
  archive=$archives/pause-$(key "$here/images/Containerfile" "$here/images/pause.c").tar
  if [ ! -f "$archive" ]; then
    gcc -static -Os -s -o "$work/pause" "$here/images/pause.c"
    image "$archive" localhost/pause:1 "$here/images/Containerfile" pause "$work"
  fi
  current pause "$archive"

  archive=$archives/coredns-$(key "$here/images/Containerfile" "$(basename "$bin")").tar
  if [ ! -f "$archive" ]; then
    cp "$bin/coredns" "$work/coredns"
    image "$archive" localhost/coredns:1 "$here/images/Containerfile" coredns "$work"
  fi
  current coredns "$archive"

  archive=$archives/postgres-$(key "$here/images/Containerfile" "$here/images/postgres-entrypoint" \
    "$(declare -f debian cluster_images)" "$(candidate postgresql-15)").tar
  if [ ! -f "$archive" ]; then
    # Without LLVM: jit is off in the entrypoint, and it is half of the image.
    debian "$work/rootfs.tar" minbase postgresql-15,procps \
      --dpkgopt='path-exclude=/usr/lib/*/libLLVM*' --dpkgopt='path-exclude=/usr/lib/llvm*' \
      --essential-hook='mkdir -p "$1/etc/postgresql-common/createcluster.d"
        echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.d/no-main.conf"' \
      --customize-hook="$user_hook"
    cp "$here/images/postgres-entrypoint" "$work/"
    image "$archive" localhost/postgres:15 "$here/images/Containerfile" postgres "$work"
  fi
  current postgres "$archive"
}

cnpg_images() {
  local archive architecture
  architecture=$(go env GOARCH)
  archive=$archives/cnpg-$(key "$here/images/Containerfile" "$here/cnpg/go.sum" "$(go env GOVERSION)" \
    "$(declare -f cnpg_images)").tar
  if [ ! -f "$archive" ]; then
    say "building CloudNativePG"
    mkdir -p "$work/operator"
    (cd "$here/cnpg" && CGO_ENABLED=0 go build -mod=mod -trimpath -ldflags "-s -w" \
      -o "$work/operator/manager_$architecture" github.com/cloudnative-pg/cloudnative-pg/cmd/manager)
    ln -s "operator/manager_$architecture" "$work/manager"
    image "$archive" localhost/cnpg:1 "$here/images/Containerfile" cnpg "$work"
  fi
  current cnpg "$archive"
}

base_image() { # prints the reference of the base in buildah's store
  local tag
  tag=$(key "$here/images/Containerfile" "$(declare -f debian base_image)" "$(candidate libc6)" "$(candidate ca-certificates)")
  if ! buildah inspect --type image "localhost/pgrouting-base:$tag" >/dev/null 2>&1; then
    say "building localhost/pgrouting-base:$tag"
    # Nothing of a package runs in variant extract, so the bundle of certificates is put together here.
    debian "$work/rootfs.tar" extract libc6,libgcc-s1,ca-certificates,base-files,netbase,tzdata \
      --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
      --customize-hook='cat "$1"/usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt"' \
      --customize-hook="$user_hook" >&2
    buildah build -q --layers=false --target base -t "localhost/pgrouting-base:$tag" -f "$here/images/Containerfile" \
      "$work" >/dev/null
  fi
  echo "localhost/pgrouting-base:$tag"
}

project_images() {
  local programs=${PROGRAMS:-${CARGO_TARGET_DIR:-$root/target}/release} base name binary archive
  for name in proxy operator; do
    binary=$programs/pgrouting-$name
    [ -x "$binary" ] || { say "$binary is missing: run make build" && return 1; }
  done
  base=$(base_image)
  mkdir -p "$root/target/images" "$work/stage/programs"
  for name in proxy operator; do
    binary=$programs/pgrouting-$name
    archive=$archives/pgrouting-$name-$(key "$root/Containerfile" "$base" "$version" "$binary").tar
    if [ ! -f "$archive" ]; then
      # Debug information stays outside: it is most of the file.
      strip -o "$work/stage/programs/pgrouting-$name" "$binary"
      image "$archive" "localhost/pgrouting-$name:$version" "$root/Containerfile" "$name" "$root/charts" \
        --build-arg BASE="$base" --build-context programs="$work/stage"
    fi
    ln -sfn "$archive" "$root/target/images/pgrouting-$name.tar"
    forget_old "pgrouting-$name"
  done
}

current() { # name, archive
  ln -sfn "$2" "$archives/current-$1.tar"
  forget_old "$1"
}

# Keeps the three newest builds of an image.
forget_old() {
  find "$archives" -type f -name "$1-*.tar" -printf '%T@ %p\n' | sort -rn | tail -n +4 | cut -d' ' -f2- | xargs -r rm -f
}

import() {
  local link archive
  [ -S "$SOCKET" ] || { say "is not up: images stay in $archives" && return; }
  mkdir -p "$STATE/imported"
  for link in "$archives"/current-*.tar "$root"/target/images/*.tar; do
    [ -e "$link" ] || continue
    archive=$(readlink -f "$link")
    [ "$(cat "$STATE/imported/$(basename "$link")" 2>/dev/null)" != "$archive" ] || continue
    "$STATE/bin/ctr" -a "$SOCKET" -n k8s.io images import "$archive" >>"$STATE/log/import.log" 2>&1
    echo "$archive" >"$STATE/imported/$(basename "$link")"
  done
}

push() { # registry
  local link reference
  for link in "$archives/current-postgres.tar" "$root"/target/images/*.tar; do
    reference=$(tar -xOf "$(readlink -f "$link")" manifest.json | jq -r '.[0].RepoTags[0]')
    buildah pull -q "docker-archive:$(readlink -f "$link")" >/dev/null
    buildah push -q "$reference" "docker://$1/${reference#localhost/}"
    buildah rmi -f "$reference" >/dev/null
    say "pushed $1/${reference#localhost/}"
  done
}

mkdir -p "$archives"
case "${1:-}" in
import) import ;;
push) push "${2:?a registry}" ;;
cluster | project | cnpg)
  exec 8>"$CACHE/images.lock"
  flock 8
  workspace
  "${1}_images"
  ;;
*)
  sed -n '2,8s/^# //p' "$0" >&2
  exit 2
  ;;
esac
