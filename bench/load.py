"""Runs pgbench against one target for one cell and measures a window in the middle of it."""

import collections
import dataclasses
import math
import os
import re
import signal
import subprocess
import time

import measure
from packages import POSTGRES_BIN

WARM_UP_SECONDS = 0.3
WAIT_SECONDS = 30

# A connection per transaction, instead of one of pgbench's protocols.
CONNECT = "connect"

# Simple statements, with all that serves clients on one core, so that whatever else the target does has another.
APART = "apart"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One kind of load: a protocol of pgbench, or `connect`, and how many clients."""

    protocol: str
    clients: int

    def __str__(self):
        return f"{self.protocol}/{self.clients}"


class CellFailed(Exception):
    """Why the figures of a cell do not count."""


@dataclasses.dataclass
class Snapshot:
    """What everybody had used at one instant."""

    at: float
    target: measure.Usage
    server: measure.Usage
    load_ns: int
    own_ns: int
    busy_ns: int
    # Of each thread of the target, by its name.
    threads: dict = dataclasses.field(default_factory=dict)


def snapshot(target_pid, server_pid, load_pid):
    """Takes the accounts of the target, the server, pgbench, this script and the machine.

    Finding the processes is slow, so it comes before the clock is read; the target's account comes right after that.
    """
    target = measure.process_tree(target_pid)
    server = measure.process_tree(server_pid)
    return Snapshot(
        time.time(), measure.usage(target), measure.usage(server), measure.usage([load_pid]).cpu_ns,
        time.process_time_ns(), measure.machine_busy_ns(), measure.threads(target_pid),
    )


def run_cell(cell, seconds, environment, target_pid, server_pid, folder):
    """Gives the metrics of one cell, or raises `CellFailed`.

    pgbench logs each transaction, so those inside the window are counted exactly, and the logins before it and the
    leave-taking after it are not in the figures.
    """
    prefix = os.path.join(folder, "transactions")
    argv = [
        f"{POSTGRES_BIN}/pgbench", "--no-vacuum", "--select-only", "--jobs=1", f"--client={cell.clients}",
        f"--time={math.ceil(seconds + WAIT_SECONDS)}", "--log", f"--log-prefix={prefix}",
    ]
    argv += {CONNECT: ["--connect"], APART: []}.get(cell.protocol, [f"--protocol={cell.protocol}"])
    if cell.protocol == APART:
        argv = ["taskset", "--cpu-list", "0", *argv]
    pgbench = subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    log = f"{prefix}.{pgbench.pid}"
    try:
        wait_for_transactions(pgbench, log)
        before, after = measure_window(pgbench, seconds, target_pid, server_pid)
        # What pgbench's own timer does when its time is over: it ends in good order, and writes the rest of the log.
        pgbench.send_signal(signal.SIGALRM)
        output, _ = pgbench.communicate(timeout=WAIT_SECONDS)
        check(pgbench.returncode, output)
        by_client = latencies(log, before.at, after.at)
        return metrics(cell, before, after, by_client, is_direct=target_pid == server_pid)
    except subprocess.TimeoutExpired:
        raise CellFailed(f"pgbench did not end within {WAIT_SECONDS} s") from None
    finally:
        if pgbench.poll() is None:
            pgbench.kill()
            pgbench.wait()
        pgbench.stdout.close()
        if os.path.exists(log):
            os.remove(log)


def wait_for_transactions(pgbench, log):
    """Returns some time after the first block of the log is there: all clients are logged in and running then."""
    deadline = time.monotonic() + WAIT_SECONDS
    while pgbench.poll() is None and time.monotonic() < deadline:
        if os.path.exists(log) and os.path.getsize(log) > 0:
            time.sleep(WARM_UP_SECONDS)
            return
        time.sleep(0.01)
    if pgbench.poll() is None:
        raise CellFailed(f"no transactions within {WAIT_SECONDS} s")
    ended_early(pgbench)


def measure_window(pgbench, seconds, target_pid, server_pid):
    """The snapshots at both ends of the window."""
    before = snapshot(target_pid, server_pid, pgbench.pid)
    time.sleep(max(0.0, before.at + seconds - time.time()))
    after = snapshot(target_pid, server_pid, pgbench.pid)
    if pgbench.poll() is not None:
        ended_early(pgbench)
    return before, after


def ended_early(pgbench):
    output, _ = pgbench.communicate()
    check(pgbench.returncode, output)
    raise CellFailed("pgbench ended before the window did")


def check(code, output):
    """Raises when pgbench says that transactions failed or that it gave up."""
    failed = re.search(r"number of failed transactions: ([1-9]\d*)", output)
    errors = [line for line in output.splitlines() if re.search(r"error|FATAL|ERROR|aborted", line)]
    if code != 0 or failed or any("aborted" in line for line in errors):
        said = errors[0] if errors else (failed.group(0) if failed else output.strip()[-300:])
        raise CellFailed(f"pgbench ended with {code}: {said}")


def latencies(log, begin, end):
    """The transactions of each client within the window, in microseconds."""
    by_client = collections.defaultdict(list)
    with open(log, "rb") as file:
        for line in file:
            client, _, latency, _, second, micro = line.split()[:6]
            if begin <= int(second) + int(micro) / 1e6 < end:
                by_client[client].append(int(latency))
    return by_client


def metrics(cell, before, after, by_client, is_direct):
    every = sorted(latency for client in by_client.values() for latency in client)
    count = len(every)
    if count == 0:
        raise CellFailed("no transactions in the window")
    seconds = after.at - before.at
    mean_us = sum(every) / count
    target = after.target.since(before.target)
    server = after.server.since(before.server)
    load_ns = after.load_ns - before.load_ns
    known_ns = server.cpu_ns + load_ns + after.own_ns - before.own_ns + (0 if is_direct else target.cpu_ns)
    foreign_ns = max(0, after.busy_ns - before.busy_ns - known_ns)
    found = {
        # Microseconds for one transaction are milliseconds for a thousand.
        "cpu_ms_per_1000_tx": target.cpu_ns / count / 1000,
        "cpu_system_share": target.system_share(),
        "server_cpu_ms_per_1000_tx": server.cpu_ns / count / 1000,
        "tps": count / seconds,
        "context_switches_per_tx": target.switches / count,
        "load_cpu_share": load_ns / 1e9 / seconds,
        "foreign_cpu_share": foreign_ns / 1e9 / seconds / os.cpu_count(),
    }
    if cell.protocol == CONNECT:
        # pgbench starts its clock after the login, so the whole round comes from the rate.
        found["latency_mean_ms"] = cell.clients * seconds * 1000 / count
        return found
    if cell.protocol == APART:
        used = lambda name: sum(  # noqa: E731
            ns - before.threads.get(thread, 0) for thread, ns in after.threads.items() if thread[1].startswith(name)
        )
        found["client_cpu_ms_per_1000_tx"] = used("serve-") / count / 1000
        found["mirror_cpu_ms_per_1000_tx"] = used("mirror") / count / 1000
    slowest = max(sum(client) / len(client) for client in by_client.values())
    found["latency_mean_ms"] = mean_us / 1000
    found["latency_p99_ms"] = every[min(count - 1, int(count * 0.99))] / 1000
    found["slowest_client_ratio"] = slowest / mean_us
    return found
