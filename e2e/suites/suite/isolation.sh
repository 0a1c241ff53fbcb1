# shellcheck shell=bash disable=SC2034,SC2154
# PostgreSQL's own tests of concurrent sessions: locks, deadlocks, what each sees of the others.
# shellcheck source=pg_regress.sh
source "$here/suite/pg_regress.sh"
# One of the tests holds the name.
database=isolation_regression

run() {
  regress "$work/isolation" pg_isolation_regress "$work/isolation/${SCHEDULE:-isolation_schedule}"
}
