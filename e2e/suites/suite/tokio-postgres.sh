# shellcheck shell=bash disable=SC2034,SC2154
# The tests of tokio-postgres and of postgres, its blocking face, from crates.io.
version=0.7.18
# Names that the tests hold.
users=(postgres pass_user md5_user scram_user)
password=password

install() {
  crate tokio-postgres "$version"
  crate postgres 0.19.14
  local name
  for name in tokio-postgres postgres; do
    # Without what only benchmarks need, and in a workspace of its own.
    awk 'BEGIN { RS = ""; ORS = "\n\n" } !/^\[\[bench\]\]|^\[dev-dependencies.criterion\]/; END { print "[workspace]" }' \
      "$name/Cargo.toml" >Cargo.toml.new
    mv Cargo.toml.new "$name/Cargo.toml"
  done
  # The addresses in the tests name a port, and accounts without a password.
  find tokio-postgres/tests postgres/src/test.rs -name '*.rs' -exec sed -i 's/user=postgres/& password=password/' {} +
  local file
  for file in tokio-postgres/tests/test/main.rs tokio-postgres/tests/test/runtime.rs postgres/src/test.rs; do
    sed -i -E 's/"[^"]*port=[^"]*"|"127\.0\.0\.1:5433"/\&address(&)/' "$file"
    cat >>"$file" <<'RUST'

fn address(text: &str) -> String {
    text.replace("5433", &std::env::var("SUITE_PORT").unwrap()).replace("localhost", "127.0.0.1")
}
RUST
  done
  build "$PWD" --no-run
}

build() { # folder, more arguments
  local name features
  for name in tokio-postgres postgres; do
    features=$(sed -n '/^\[features\]/,/^\[d/s/^"\{0,1\}\(with-[a-z0-9_-]*\|array-impls\)"\{0,1\} =.*/\1/p' "$1/$name/Cargo.toml" | grep -v smol | paste -sd,)
    (cd "$1/$name" && CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$1/target" \
      cargo test --lib --tests --features "$features" --no-fail-fast "${@:2}")
  done
}

prepare() {
  admin postgres -c "CREATE EXTENSION hstore" -c "CREATE EXTENSION citext" -c "CREATE EXTENSION ltree"
}

run() {
  SUITE_PORT=$port timeout "$limit" bash -c "$(declare -f build); build '$home' -- --test-threads=1"
}

results() {
  "$here/results.py" cargo "$out/log"
}
