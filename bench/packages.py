"""Finds the programs that a run needs and installs their Debian packages where they are missing."""

import contextlib
import os
import shutil
import subprocess
import sys

POSTGRES_BIN = "/usr/lib/postgresql/15/bin"

# One program of each package tells whether it is installed.
PACKAGES = {
    "postgresql-15": f"{POSTGRES_BIN}/pgbench",
    "pgbouncer": "/usr/sbin/pgbouncer",
    "pgpool2": "/usr/sbin/pgpool",
    "haproxy": "/usr/sbin/haproxy",
}

POLICY = "/usr/sbin/policy-rc.d"


def install_missing():
    """Installs what is missing. Starts no service and touches no cluster that exists."""
    missing = [package for package, program in PACKAGES.items() if not os.path.exists(program)]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit(f"bench: install these Debian packages first: {' '.join(missing)}")
    print(f"bench: installing {' '.join(missing)}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with services_denied():
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"bench: {' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


@contextlib.contextmanager
def services_denied():
    """Keeps package scripts from starting services, by the policy file that Debian asks; ours goes away again."""
    if os.path.exists(POLICY):
        # The machine has a policy of its own (images for containers deny everything); it stays as it is.
        yield
        return
    with open(POLICY, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 101\n")
    os.chmod(POLICY, 0o755)
    try:
        yield
    finally:
        os.remove(POLICY)
