"""Says what a run was made on and with: the machine and the versions of all programs."""

import hashlib
import os
import platform
import re
import subprocess
import sys

from packages import POSTGRES_BIN


def machine_facts():
    """Pairs of a name and a text, for the table at the head of the results."""
    model = re.search(r"^model name\s*:\s*(.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", text_of("/proc/meminfo"), re.MULTILINE)
    system = re.search(r'^PRETTY_NAME="(.*)"$', text_of("/etc/os-release"), re.MULTILINE)
    return [
        ("CPU", model[1] if model else platform.machine()),
        ("Cores", str(os.cpu_count())),
        ("Memory", f"{int(memory[1]) // 1024} MiB" if memory else "?"),
        ("Kernel", platform.release()),
        ("System", system[1] if system else "?"),
    ]


def version_facts():
    commands = [
        ("PostgreSQL, pgbench", [f"{POSTGRES_BIN}/postgres", "--version"]),
        ("PgBouncer", ["/usr/sbin/pgbouncer", "--version"]),
        ("Pgpool-II", ["/usr/sbin/pgpool", "--version"]),
        ("haproxy", ["/usr/sbin/haproxy", "-v"]),
    ]
    return [(name, first_line(command)) for name, command in commands] + [("Python", sys.version.split()[0])]


def build_fact(path):
    """What a binary of ours says of itself, its size and the begin of its SHA-256."""
    if not os.path.exists(path):
        return f"{path}: not there"
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return f"{first_line([path, '--version'])}, {os.path.getsize(path) // 1024} KiB, sha256 {digest}"


def commit():
    """The commit of the tree that the run was started in."""
    here = os.path.dirname(os.path.abspath(__file__))
    return first_line(["git", "-C", here, "describe", "--always", "--dirty"])


def first_line(command):
    """Some programs say their version on standard error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else "?"


def text_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
