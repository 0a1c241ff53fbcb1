# shellcheck shell=bash disable=SC2034,SC2154
# pg8000's tests, from its source distribution on PyPI.
version=1.31.6

install() {
  python_source pg8000 "$version"
  python_packages "pg8000==$version" pytest pytest-timeout pytest-mock pytest-benchmark pytz
  mv source/test test
  # Its fixtures name a user, and no database.
  find test -name conftest.py -exec sed -i \
    's/"user": "postgres"/"user": environ["PGUSER"], "database": environ["PGDATABASE"]/' {} +
}

prepare() {
  admin "$database" -c "CREATE EXTENSION hstore"
}

run() {
  # Those under auth want a server configured for them.
  PGHOST=$host PGPORT=$port PGUSER=postgres PGPASSWORD=$password PGDATABASE=$database \
    timeout "$limit" venv/bin/python -m pytest -q --timeout=120 -p no:cacheprovider --junitxml="$out/junit.xml" \
    --benchmark-disable --ignore-glob='*/auth/*' --ignore test/test_readme.py test
}

results() {
  "$here/results.py" junit "$out/junit.xml"
}
