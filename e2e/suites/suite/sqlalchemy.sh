# shellcheck shell=bash disable=SC2034,SC2154
# The part of SQLAlchemy's tests that is about databases, from its source distribution on PyPI, with psycopg.
version=2.1.9

install() {
  python_source sqlalchemy "$version"
  python_packages "sqlalchemy[asyncio]==$version" "psycopg[binary]" pytest pytest-timeout
  # Its own sources in plain Python, which its fixtures look for.
  mkdir tree
  mv source/test source/lib source/setup.cfg source/pyproject.toml tree
}

prepare() {
  admin "$database" -c "ALTER DATABASE \"$database\" SET default_text_search_config = 'pg_catalog.english'" \
    -c "CREATE EXTENSION hstore" -c "CREATE EXTENSION citext" -c "CREATE SCHEMA test_schema" -c "CREATE SCHEMA test_schema_2"
}

run() {
  cd tree || return
  timeout "$limit" ../venv/bin/python -m pytest -q -p no:logging --timeout=300 --maxfail=100000 --junitxml="$out/junit.xml" \
    --backend-only --dburi="postgresql+psycopg://postgres:$password@$host:$port/$database" \
    test/engine/test_transaction.py test/dialect/postgresql test/orm/test_transaction.py
}

results() {
  "$here/results.py" junit "$out/junit.xml"
}
