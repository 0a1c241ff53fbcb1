# shellcheck shell=bash disable=SC2154
# Installs a suite by the name that its registry knows, into a cache outside the tree.
cache=${PGROUTING_CACHE:-$HOME/.cache/pgrouting}/suites

# Runs the suite's `install` in a folder of its own, keyed by version and by what `install` does, unless it is there.
fetch() {
  home=$cache/${source_name:-$suite}-$version-$(declare -f install | sha256sum | cut -c1-8)
  [ ! -e "$home/.complete" ] || return 0
  rm -rf "$home"
  mkdir -p "$home"
  # A process of its own, so that any command that fails ends it.
  (cd "$home" && version=$version bash -euc "$(declare -f); install") || return 1
  touch "$home/.complete"
}

# The source distribution of a Python package, unpacked into `source`.
python_source() { # name, version
  pip download -q --no-deps --no-binary "$1" -d . "$1==$2"
  mkdir source
  tar xzf ./*.tar.gz --strip-components=1 -C source
}

# Python packages, in an environment of their own.
python_packages() {
  python3 -m venv venv
  venv/bin/pip install -q "$@"
}

# A Go module with its tests, copied to `source`, where it can be written to.
go_module() { # path, version
  local folder
  folder=$(cd / && go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  cp -r "$folder" source
  chmod -R u+w source
}

# The sources of a crate, copied to a folder of its name.
crate() { # name, version
  mkdir -p "fetch-$1/src"
  : >"fetch-$1/src/lib.rs"
  printf '[package]\nname = "fetch"\nversion = "0.0.0"\n[dependencies]\n%s = "=%s"\n' "$1" "$2" >"fetch-$1/Cargo.toml"
  (cd "fetch-$1" && cargo fetch -q)
  cp -r "$(find "${CARGO_HOME:-$HOME/.cargo}"/registry/src -maxdepth 2 -name "$1-$2" | head -1)" "$1"
  chmod -R u+w "$1"
}

# Packages of Debian, where they are missing.
debian_packages() {
  dpkg -s "$@" >/dev/null 2>&1 && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}
