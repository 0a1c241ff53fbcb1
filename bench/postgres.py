"""The PostgreSQL server of a run: a cluster of its own in the temporary folder, on a loopback port."""

import os
import secrets
import signal
import subprocess
import time

import process
from packages import POSTGRES_BIN

USER = "bench"
DATABASE = "bench"

# Small, without writes to disk, and quiet: the shared buffers hold all of scale 10, so that no page is read twice.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "192MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "4GB",
    "jit": "off",
    "password_encryption": "scram-sha-256",
}


# Each statement of pgbench takes 20 ms there.
SLOW_ACCOUNTS = """
CREATE FUNCTION late() RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.02); RETURN 1; END';
CREATE VIEW pgbench_accounts AS SELECT late() AS aid, 0 AS abalance;
GRANT SELECT ON pgbench_accounts TO PUBLIC;
"""


class Postgres:
    """Started and stopped with a number of connections; its data stays for the run."""

    # A database whose table of pgbench takes its time.
    SLOW = "slow"

    def __init__(self, workspace):
        self.workspace = workspace
        self.port = process.free_port()
        self.data = workspace.path("data")
        self.password = secrets.token_urlsafe(18)
        self.account = (USER, DATABASE, self.password)
        self.started = None
        self.verifier = None
        self.root_password = secrets.token_urlsafe(18)
        self.standbys = []
        self.standby_pids = []

    def create(self, scale):
        """Makes the cluster, the user and the tables of pgbench."""
        password_file = self.workspace.write(self.root_password, "postgres.password")
        self.workspace.run([
            f"{POSTGRES_BIN}/initdb", "-D", self.data, "-U", "postgres", "--auth=scram-sha-256",
            f"--pwfile={password_file}", "--encoding=UTF8", "--no-locale", "--no-sync",
        ])
        self.start(100)
        as_root = {**self.libpq(), "PGUSER": "postgres", "PGPASSWORD": self.root_password, "PGDATABASE": "postgres"}
        psql = [f"{POSTGRES_BIN}/psql", "-XqAt", "-v", "ON_ERROR_STOP=1"]
        self.workspace.run(psql, as_root, f"CREATE ROLE {USER} LOGIN PASSWORD '{self.password}';")
        self.workspace.run(psql, as_root, f"CREATE DATABASE {DATABASE} OWNER {USER};")
        ask = f"SELECT rolpassword FROM pg_authid WHERE rolname = '{USER}';"
        self.verifier = self.workspace.run(psql, as_root, ask).strip()
        self.workspace.run(psql, as_root, f"CREATE DATABASE {self.SLOW} OWNER {USER};")
        self.workspace.run(psql, {**as_root, "PGDATABASE": self.SLOW}, SLOW_ACCOUNTS)
        self.workspace.run([f"{POSTGRES_BIN}/pgbench", "-iq", "-s", str(scale)], self.libpq())
        self.stop()

    def start(self, connections):
        settings = {
            **SETTINGS, "port": self.port, "max_connections": connections,
            "unix_socket_directories": self.workspace.root,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.started = self.workspace.start("postgres", [f"{POSTGRES_BIN}/postgres", "-D", self.data, *options])
        self.wait(self.started, self.port)

    def start_standbys(self, count, connections):
        """Hot standbys that follow the running server."""
        for number in range(1, count + 1):
            data, port = self.workspace.path(f"standby{number}"), process.free_port()
            as_root = {**self.libpq(), "PGUSER": "postgres", "PGPASSWORD": self.root_password}
            self.workspace.run(
                [f"{POSTGRES_BIN}/pg_basebackup", "-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync"], as_root,
            )
            settings = {
                **SETTINGS, "port": port, "max_connections": connections,
                "unix_socket_directories": self.workspace.root,
            }
            options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            started = self.workspace.start(
                f"standby{number}", [f"{POSTGRES_BIN}/postgres", "-D", data, *options],
            )
            self.wait(started, port)
            self.standbys.append(port)
            self.standby_pids.append(started.pid)

    def wait(self, started, port):
        for _ in range(200):
            if not started.is_running():
                break
            ready = subprocess.run(
                [f"{POSTGRES_BIN}/pg_isready", "-q", "-t", "1"], env=self.libpq(port), check=False,
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        raise RuntimeError(f"PostgreSQL does not start:\n{started.log_tail()}")

    def stop(self):
        if self.started:
            self.workspace.stop(self.started, signal.SIGINT)
            self.started = None

    def libpq(self, port=None):
        """The environment in which pgbench and psql reach the server, or a target in front of it."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "PGHOST": "127.0.0.1",
            "PGPORT": str(port or self.port),
            "PGUSER": USER,
            "PGDATABASE": DATABASE,
            "PGPASSWORD": self.password,
            "PGSSLMODE": "disable",
            "PGGSSENCMODE": "disable",
            "PGCONNECT_TIMEOUT": "10",
        }
