# shellcheck shell=bash disable=SC2034,SC2154
# asyncpg's tests, from its source distribution on PyPI.
version=0.32.0

install() {
  python_source asyncpg "$version"
  python_packages "asyncpg==$version" pytest pytest-timeout uvloop distro
  mv source/tests tests
  # One test names a database.
  sed -i "s/database='postgres'/database=__import__('os').environ['PGDATABASE']/" tests/test_cache_invalidation.py
}

run() {
  PGHOST=$host PGPORT=$port PGUSER=postgres PGPASSWORD=$password PGDATABASE=$database \
    timeout "$limit" venv/bin/python -m pytest -q --timeout=120 -p no:cacheprovider --junitxml="$out/junit.xml" \
    --ignore tests/test__sourcecode.py tests
}

results() {
  "$here/results.py" junit "$out/junit.xml"
}
