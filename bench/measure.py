"""Reads what processes have used: CPU time, context switches and memory, from the kernel's own accounts."""

import dataclasses
import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
TICK_NS = 1_000_000_000 // TICKS


@dataclasses.dataclass
class Usage:
    """What a tree of processes has used since each of them began."""

    cpu_ns: int = 0
    user_ticks: int = 0
    system_ticks: int = 0
    switches: int = 0

    def since(self, before):
        return Usage(*(now - then for now, then in zip(dataclasses.astuple(self), dataclasses.astuple(before))))

    def system_share(self):
        ticks = self.user_ticks + self.system_ticks
        return self.system_ticks / ticks if ticks else 0.0


def process_tree(root):
    """The pids of a process and of all that descend from it."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                children.setdefault(int(stat_fields(name)[1]), []).append(int(name))
            except OSError:
                continue
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def stat_fields(pid):
    """The fields of /proc/PID/stat from `state` on; the name before them may hold spaces."""
    with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
        return file.read().rpartition(")")[2].split()


def usage(pids):
    """Sums over the processes, all their threads, and the children that they have waited for.

    A process that ends hands its time to its parent, so the sum over a tree never falls. Context switches have no such
    account: those of a thread that has ended are lost.
    """
    total = Usage()
    for pid in pids:
        try:
            # The process's CPU clock (clock_getcpuclockid(3)) counts in nanoseconds, /proc only in 10 ms ticks.
            own_ns = time.clock_gettime_ns((~pid << 3) | 2)
            user, system, waited_user, waited_system = (int(field) for field in stat_fields(pid)[11:15])
        except OSError:
            continue
        total.cpu_ns += own_ns + (waited_user + waited_system) * TICK_NS
        total.user_ticks += user + waited_user
        total.system_ticks += system + waited_system
        total.switches += context_switches(pid)
    return total


def threads(pid):
    """The CPU time of each thread of a process that runs now, in nanoseconds, by its number and name."""
    found = {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/comm", encoding="utf-8") as file:
                name = file.read().strip()
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                found[thread, name] = int(file.read().split()[0])
    except OSError:
        pass
    return found


def context_switches(pid):
    """Voluntary and other, of all threads that the process has now."""
    count = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/status", "rb") as file:
                text = file.read()
        except OSError:
            continue
        for line in text[text.rfind(b"\nvoluntary"):].split():
            if line.isdigit():
                count += int(line)
    return count


def memory_kib(pids):
    """The resident set and the proportional set of the processes, in KiB.

    The first counts a page once for each process that has it, the second shares it out among them.
    """
    resident = proportional = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                for line in file:
                    if line.startswith("Rss:"):
                        resident += int(line.split()[1])
                    elif line.startswith("Pss:"):
                        proportional += int(line.split()[1])
        except OSError:
            continue
    return resident, proportional


def machine_busy_ns():
    """The time that all cores together were not idle, whoever used them; time stolen by the host is in it."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(n) for n in file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_NS
