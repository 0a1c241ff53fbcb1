# shellcheck shell=bash disable=SC2034,SC2154
# PostgreSQL's own regression tests, from the source package of Debian.
version=15
source_name=postgresql
database=regression

install() {
  debian_packages build-essential dpkg-dev
  # Lists of its own: the machine's sources stay as they are. Of a package's versions the newest that is there.
  printf 'deb-src http://deb.debian.org/debian%s main\n' " bookworm" "-security bookworm-security" >sources.list
  mkdir -p lists/partial
  local apt=(-o Dir::Etc::sourcelist="$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$PWD/lists" -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=)
  apt-get "${apt[@]}" update -qq
  local found
  for found in $(apt-cache "${apt[@]}" showsrc postgresql-15 | sed -n 's/^Version: //p' | sort -rV | uniq); do
    apt-get "${apt[@]}" source -qq --download-only "postgresql-15=$found" && break
  done
  mkdir source
  tar xjf postgresql-15_*.orig.tar.bz2 --strip-components=1 -C source
  cd source || return
  ./configure -q --without-readline --without-zlib --prefix=/usr/lib/postgresql/15
  make -s -C src/backend generated-headers
  make -s -C src/test/regress all
  make -s -C src/test/isolation all
  # What psql says is part of what is expected.
  make -s -C src/bin/psql all
}

prepare() {
  # In the run's own folder, which the server can read and write.
  cp -r "$home/source/src/test/regress" "$home/source/src/test/isolation" "$work"
  mkdir "$work/bin" "$work/output"
  cp "$home/source/src/bin/psql/psql" "$work/bin"
  [ "$EUID" -ne 0 ] || chown -R postgres "$work/regress" "$work/isolation" "$work/output"
  local setting
  for setting in lc_messages=C lc_monetary=C lc_numeric=C lc_time=C bytea_output=hex timezone_abbreviations=Default; do
    admin "$database" -c "ALTER DATABASE $database SET ${setting%=*} = '${setting#*=}'"
  done
}

run() {
  regress "$work/regress" pg_regress "$work/regress/${SCHEDULE:-parallel_schedule}" --dlpath="$work/regress" --max-connections=8
}

regress() { # folder, program, schedule, arguments
  (cd "$work/output" && PGPASSWORD=$password PATH=$1:$PATH as_postgres timeout "$limit" "$1/$2" --inputdir="$1" --outputdir="$work/output" \
    --bindir="$work/bin" --use-existing --dbname="$database" --host="$host" --port="$port" --user=postgres --schedule="$3" "${@:4}")
  cp "$work/output/regression.diffs" "$out" 2>/dev/null
}

results() {
  "$here/results.py" regress "$out/log"
}
