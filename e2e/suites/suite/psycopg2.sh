# shellcheck shell=bash disable=SC2034,SC2154
# psycopg2's tests, from its source distribution on PyPI.
version=2.9.13

install() {
  debian_packages libpq-dev
  python_source psycopg2 "$version"
  python_packages ./source pytest pytest-timeout
  # Beside its sources Python would find those and not what was built.
  mv source/tests tests
}

prepare() {
  admin "$database" -c "CREATE EXTENSION hstore"
}

run() {
  # An empty source of replication is the same server.
  PSYCOPG2_TESTDB=$database PSYCOPG2_TESTDB_HOST=$host PSYCOPG2_TESTDB_PORT=$port PSYCOPG2_TESTDB_USER=postgres \
    PSYCOPG2_TESTDB_PASSWORD=$password PSYCOPG2_TEST_REPL_DSN='' \
    timeout "$limit" venv/bin/python -m pytest -q --timeout=120 -p no:cacheprovider --junitxml="$out/junit.xml" tests
}

results() {
  "$here/results.py" junit "$out/junit.xml"
}
