"""Measures how much memory a target holds with no client, and with many that are logged in and idle."""

import resource
import time

import logins
import measure
import targets

SETTLE_SECONDS = 0.7

# A target with a server connection, and often a process, for each client is not asked for more than this.
ONE_TO_ONE_MOST = 1000

# Files that this process and each target need besides the connections.
FILES_RESERVED = 500


class MemoryFailed(Exception):
    """Why a target's memory could not be measured."""


def allow_files(idle, busy, crowds):
    """Raises the limit of open files for this process and all that it starts, and says whether it is enough.

    The crowds of all targets are this process's.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A relay has two connections for each client.
    needed = max(idle, 2 * min(idle, ONE_TO_ONE_MOST), 2 * busy, busy + crowds) + FILES_RESERVED
    return most == resource.RLIM_INFINITY or most >= needed


def idle_clients(target, clients):
    return min(clients, ONE_TO_ONE_MOST) if target.is_one_to_one else clients


def measure_memory(target, workspace, server, clients):
    """Starts the target afresh, fills it with idle clients, and gives metrics for none and for all of them.

    The last figure is taken after each of them has run one statement: buffers that a login does not need are there
    then.
    """
    clients = idle_clients(target, clients)
    target.start(workspace, server, targets.Limits(clients + 10))
    if target.fault:
        raise MemoryFailed(target.fault)
    connected = []
    try:
        time.sleep(SETTLE_SECONDS)
        found = held(target, "idle_0")
        connected = logins.log_in_many(target.port, server.account, clients)
        time.sleep(SETTLE_SECONDS)
        found |= held(target, f"idle_{clients}")
        for client in connected:
            client.query("SELECT 1")
        time.sleep(SETTLE_SECONDS)
        found |= held(target, f"idle_{clients}_after_query")
        for kind in ("rss", "pss"):
            grown = found[f"{kind}_kib_idle_{clients}"] - found[f"{kind}_kib_idle_0"]
            found[f"{kind}_kib_per_idle_client"] = grown / clients
        return clients, found
    except (OSError, logins.LoginError) as error:
        raise MemoryFailed(f"{error}\n{target.started.log_tail()}") from error
    finally:
        for client in connected:
            client.close()
        target.stop(workspace)


def held(target, when):
    resident, proportional = measure.memory_kib(measure.process_tree(target.pid))
    return {f"rss_kib_{when}": resident, f"pss_kib_{when}": proportional}
