"""Writes the results of a run: tables for people and a list for programs."""

import dataclasses
import json
import os

from load import APART, CONNECT

IDLE = "idle"
NOT_RUNNING = "not running"


def write(folder, run, samples):
    """Writes RESULTS.md and results.json into a folder."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as file:
        records = samples.records(run.references)
        file.write("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
    with open(os.path.join(folder, "RESULTS.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines(run, samples)) + "\n")


def lines(run, samples):
    yield from head(run)
    yield from goal(samples)
    yield from split(samples)
    yield from mirror(samples)
    yield from noise(samples)
    for protocol in run.protocols:
        for clients in run.clients:
            yield from load_table(run, samples, protocol, clients)
    if run.connect_clients:
        yield from connect_table(run, samples, run.connect_clients)
    if run.idle_clients:
        yield from memory_table(samples)
    yield from faults(run, samples)


def head(run):
    yield "# Benchmark results"
    yield ""
    yield f"Made on {run.date} from commit {run.commit} by"
    yield ""
    yield f"    {run.command}"
    yield ""
    yield (
        f"{run.rounds} interleaved rounds of {run.seconds:g} s for each cell; transaction mode, a pool of {run.pool}, "
        "SCRAM on both sides, no TLS. How to read this: [README.md](README.md)."
    )
    yield ""
    yield from table(["", ""], run.facts)


def goal(samples):
    """The first goal of the project, told in one line for each protocol at 16 clients."""
    told = []
    for protocol in ("simple", "extended", "prepared"):
        for row in samples.rows(protocol, 16):
            ratio = samples.ratio(row, "pgbouncer")
            if row.target == "pgrouting" and ratio:
                verdict = "reached" if ratio[1] <= 1 else "missed"
                told.append([protocol, spread_text(ratio, 2), samples.reference(row, "pgbouncer").label, verdict])
    if told:
        yield "## CPU per transaction against PgBouncer, 16 clients"
        yield ""
        yield "The goal is at most 1.00 in the same run."
        yield ""
        yield from table(["protocol", "pgrouting ÷ pgbouncer", "compared with", "goal"], told)


def split(samples):
    """What the split costs, and how even it is, in one line for each table."""
    told = []
    for row in samples.every_row():
        if row.target != "pgrouting-split":
            continue
        ratio = samples.ratio(row, "pgrouting")
        replicas = samples.summary(row, "busier_replica_share")
        primary = samples.summary(row, "primary_share")
        if ratio and replicas and primary:
            told.append([
                row.protocol, str(row.clients), spread_text(ratio, 2), f"{primary[1]:.1%}", f"{replicas[1]:.1%}",
            ])
    if told:
        yield "## The split"
        yield ""
        yield (
            "CPU per transaction at the stage Split, with two standbys, against the stage PoolingOnly in the same round; how "
            "many transactions went to the primary, and how many of the others to the busier standby."
        )
        yield ""
        yield from table(["protocol", "clients", "split ÷ pooling", "on the primary", "on the busier standby"], told)


def mirror(samples):
    """What a copy of every read costs the clients, by the state that the mirror is in."""
    rows = samples.rows(APART, 16)
    off = next((row for row in rows if row.target.endswith("-off")), None)
    if off is None:
        return
    yield "## The mirror"
    yield ""
    yield (
        "Simple reads of 16 clients, as many as there can be, each copied (stage Mirror, `statements: ReadsOnly`, `percent: 100`). "
        "Those who serve clients (pgbench, the primary, the proxy's other threads) have one core, the mirror's thread and the "
        "mirror another. The CPU of the threads that serve clients, and p99, also against the same round with the mirror not "
        "in effect. The goal is at most 1.05, and no error; a cell with an error would stand under Faults."
    )
    yield ""
    names = ["the proxy has", "CPU ms per 1,000 tx for clients", "÷ off", "p99 ms", "÷ off", "CPU ms for the mirror", "RSS KiB", "tps",
             "run there", "µs of a request here", "there"]
    body = []
    for row in rows:
        body.append([
            row.label,
            spread_text(samples.summary(row, "client_cpu_ms_per_1000_tx"), 1),
            spread_text(samples.quotient(row, off, "client_cpu_ms_per_1000_tx"), 2),
            spread_text(samples.summary(row, "latency_p99_ms"), 2),
            spread_text(samples.quotient(row, off, "latency_p99_ms"), 2),
            median_text(samples.summary(row, "mirror_cpu_ms_per_1000_tx"), 1),
            median_text(samples.summary(row, "rss_kib"), 0),
            median_text(samples.summary(row, "tps"), 0),
            percent_text(samples.summary(row, "mirrored_share")),
            median_text(samples.summary(row, "mean_us_here"), 0),
            median_text(samples.summary(row, "mean_us_there"), 0),
        ])
    yield from table(names, body)


def noise(samples):
    """How far the figures can be trusted: what else used the cores, and where pgbench was the limit."""
    foreign, limited = [], []
    for row, metrics in samples.found.items():
        foreign += metrics.get("foreign_cpu_share", {}).values()
        if max(metrics.get("load_cpu_share", {0: 0}).values()) > 0.9 and row.protocol != CONNECT:
            limited.append(f"{row.label} {row.protocol}/{row.clients}")
    if foreign:
        foreign.sort()
        yield (
            f"Cores used by anything that is not part of the run: {foreign[len(foreign) // 2]:.1%} at the median, "
            f"{foreign[-1]:.1%} at most."
        )
        yield ""
    if limited:
        yield f"pgbench's one thread was over 90 % busy in: {', '.join(limited)}. Read their tps with care."
        yield ""


def load_table(run, samples, protocol, clients):
    rows = samples.rows(protocol, clients)
    if not rows:
        return
    yield f"## {protocol}, {clients} {'client' if clients == 1 else 'clients'}"
    yield ""
    names = ["target", "CPU ms per 1,000 tx", *(f"÷ {name}" for name in run.references), "tps", "mean ms", "p99 ms",
             "switches per tx", "system", "server CPU", "slowest client"]
    body = []
    for row in rows:
        body.append([
            name_of(samples, row),
            spread_text(samples.summary(row, "cpu_ms_per_1000_tx"), 1),
            *(median_text(samples.ratio(row, name), 2) for name in run.references),
            spread_text(samples.summary(row, "tps"), 0),
            median_text(samples.summary(row, "latency_mean_ms"), 3),
            median_text(samples.summary(row, "latency_p99_ms"), 3),
            median_text(samples.summary(row, "context_switches_per_tx"), 2),
            percent_text(samples.summary(row, "cpu_system_share")),
            median_text(samples.summary(row, "server_cpu_ms_per_1000_tx"), 1),
            median_text(samples.summary(row, "slowest_client_ratio"), 2),
        ])
    yield from table(names, body)


def connect_table(run, samples, clients):
    rows = samples.rows(CONNECT, clients)
    if not rows:
        return
    yield f"## A login for each transaction (`pgbench -C`, simple), {clients} clients"
    yield ""
    names = ["target", "CPU ms per 1,000 logins", *(f"÷ {name}" for name in run.references), "logins per s",
             "mean ms", "server CPU"]
    body = []
    for row in rows:
        body.append([
            name_of(samples, row),
            spread_text(samples.summary(row, "cpu_ms_per_1000_tx"), 0),
            *(median_text(samples.ratio(row, name), 2) for name in run.references),
            spread_text(samples.summary(row, "tps"), 0),
            median_text(samples.summary(row, "latency_mean_ms"), 1),
            median_text(samples.summary(row, "server_cpu_ms_per_1000_tx"), 0),
        ])
    yield from table(names, body)


def memory_table(samples):
    rows = samples.idle_rows(IDLE)
    if not rows:
        return
    yield "## Memory"
    yield ""
    names = ["target", "RSS KiB, no client", "idle clients", "RSS KiB with them", "RSS KiB per client",
             "RSS KiB after a query of each", "PSS KiB, no client", "PSS KiB with them", "PSS KiB per client"]
    body = []
    for row in rows:
        none = dataclasses.replace(row, clients=0)
        body.append([
            name_of(samples, row),
            median_text(samples.summary(none, "rss_kib_idle_0"), 0),
            f"{row.clients:,}",
            median_text(samples.summary(row, f"rss_kib_idle_{row.clients}"), 0),
            median_text(samples.summary(row, "rss_kib_per_idle_client"), 1),
            median_text(samples.summary(row, f"rss_kib_idle_{row.clients}_after_query"), 0),
            median_text(samples.summary(none, "pss_kib_idle_0"), 0),
            median_text(samples.summary(row, f"pss_kib_idle_{row.clients}"), 0),
            median_text(samples.summary(row, "pss_kib_per_idle_client"), 1),
        ])
    yield from table(names, body)


def faults(run, samples):
    if not run.faults and not samples.failures:
        return
    yield "## Faults"
    yield ""
    for label, fault in run.faults.items():
        first, _, rest = fault.partition("\n")
        yield f"* {label}: {first}"
        if rest:
            yield ""
            yield from (f"      {line}" for line in rest.splitlines())
            yield ""
    for row, by_round in samples.failures.items():
        for number, why in by_round.items():
            # Told above, once.
            if row.label in run.faults and why.startswith((NOT_RUNNING, "does not start")):
                continue
            yield f"* {row.label}, {row.protocol}/{row.clients}, round {number}: {why.splitlines()[0]}"
    yield ""


def name_of(samples, row):
    """The label, with the number of rounds that failed: their figures are not counted."""
    failed = len(samples.failures.get(row, {}))
    return f"{row.label} **({failed} failed)**" if failed else row.label


def table(names, body):
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join(['---'] + ['---:' if len(names) > 2 else '---'] * (len(names) - 1))}|"
    for cells in body:
        yield f"| {' | '.join(cells)} |"
    yield ""


def median_text(values, digits):
    return f"{values[1]:,.{digits}f}" if values else "–"


def spread_text(values, digits):
    return f"{median_text(values, digits)} [{values[0]:,.{digits}f}..{values[2]:,.{digits}f}]" if values else "–"


def percent_text(values):
    return f"{values[1]:.0%}" if values else "–"
