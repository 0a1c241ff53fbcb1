# shellcheck shell=bash disable=SC2034,SC2154
# A program of ours on pgjdbc from Maven Central, which publishes the driver without its tests.
version=42.7.5

install() {
  debian_packages maven default-jdk-headless
  mvn -q -B dependency:copy -Dartifact="org.postgresql:postgresql:$version" -DoutputDirectory=lib
}

run() {
  PASSWORD=$password timeout "$limit" java -Xmx512m -cp "$home/lib/postgresql-$version.jar" "$here/suite/Jdbc.java" \
    "jdbc:postgresql://$host:$port/$database?sslmode=disable&connectTimeout=10&socketTimeout=30"
}

results() {
  "$here/results.py" plain "$out/log"
}
