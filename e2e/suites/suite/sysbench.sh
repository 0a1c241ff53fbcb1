# shellcheck shell=bash disable=SC2034,SC2154
# sysbench's OLTP scripts, with named statements and without: a case is good when nothing fails and nobody reconnects.
version=1.0.20

install() {
  debian_packages sysbench
}

run() {
  local script statements
  sysbench prepare oltp_read_write prepare
  for statements in auto disable; do
    for script in oltp_read_only oltp_point_select oltp_read_write oltp_write_only oltp_update_index oltp_insert oltp_delete; do
      sysbench "$script, statements $statements" "$script" --db-ps-mode="$statements" run
    done
  done
}

sysbench() { # name, arguments
  local log=$work/case.log
  if /usr/bin/sysbench --db-driver=pgsql --pgsql-host="$host" --pgsql-port="$port" --pgsql-user=postgres \
    --pgsql-password="$password" --pgsql-db="$database" --tables=2 --table-size=10000 --threads=8 \
    --time="${SUITE_SECONDS:-3}" "${@:2}" >"$log" 2>&1 && ! grep -qE 'FATAL|reconnects: +[1-9]' "$log"; then
    echo "ok $1"
  else
    echo "FAILED $1: $(grep -m1 FATAL "$log")"
  fi
}

results() {
  "$here/results.py" plain "$out/log"
}
