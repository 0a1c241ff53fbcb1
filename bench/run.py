#!/usr/bin/env python3
"""Compares our proxy with its peers under pgbench, in interleaved rounds on this machine."""

import argparse
import dataclasses
import datetime
import os
import shlex
import signal
import sys

sys.dont_write_bytecode = True

import load  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import memory  # noqa: E402
import packages  # noqa: E402
import postgres  # noqa: E402
import process  # noqa: E402
import report  # noqa: E402
import samples as sampling  # noqa: E402
import targets as catalogue  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SCRATCH = os.path.join(ROOT, "target", "bench")

PROTOCOLS = ["simple", "extended", "prepared"]
CLIENTS = [1, 16, 64]
CONNECT_CLIENTS = 16
APART_CLIENTS = 16
REFERENCES = ["pgbouncer", "haproxy"]
PEER_TLS = "pgbouncer-tls"
PEERS = ["direct", "haproxy", "pgbouncer", "pgpool", "pgpool-split", PEER_TLS]
OURS = "pgrouting"
OURS_SPLIT = "pgrouting-split"
OURS_MIRROR = "pgrouting-mirror"
OURS_TLS = "pgrouting-tls"
ALL_TARGETS = [*PEERS, OURS, OURS_TLS, OURS_SPLIT, OURS_MIRROR]
STANDBYS = 2


@dataclasses.dataclass
class Run:
    """What a run is asked to do, and what its report says about it."""

    protocols: list
    clients: list
    connect_clients: int
    idle_clients: int
    rounds: int
    seconds: float
    scale: int
    targets: list
    # Whether it has all that the checked-in results must have.
    is_full: bool
    out: str
    references: list
    command: str
    date: str
    commit: str
    facts: list
    pool: int = catalogue.POOL
    faults: dict = dataclasses.field(default_factory=dict)

    def cells(self):
        found = [load.Cell(protocol, clients) for protocol in self.protocols for clients in self.clients]
        found += [load.Cell(load.CONNECT, self.connect_clients)] if self.connect_clients else []
        return found + ([load.Cell(load.APART, APART_CLIENTS)] if any(self.is_mirror(target) for target in self.targets) else [])

    @staticmethod
    def is_mirror(target):
        return isinstance(target, catalogue.PgroutingMirror)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="few cells and rounds, for a check in two minutes")
    parser.add_argument("--targets", type=words, help=f"of {','.join(ALL_TARGETS)}")
    parser.add_argument("--protocols", type=words, help=f"of {','.join(PROTOCOLS)}")
    parser.add_argument("--clients", type=numbers, help="for example 1,16,64")
    parser.add_argument("--rounds", type=int, help="how often each cell is run with each target (5)")
    parser.add_argument("--seconds", type=float, help="the measured time of one cell (2)")
    parser.add_argument("--connect-clients", type=int, default=CONNECT_CLIENTS, help="for the login cell; 0: none")
    parser.add_argument("--idle-clients", type=int, default=1000, help="for the memory; 0 leaves it out")
    parser.add_argument(
        "--crowd", type=int, default=0, metavar="N",
        help="ours and PgBouncer once more in the same rounds, with N idle clients beside those of pgbench",
    )
    parser.add_argument("--scale", type=int, default=10, help="of pgbench's tables")
    parser.add_argument("--workers", type=int, default=1, help="worker threads of our proxy; 0: one for each core")
    parser.add_argument("--pgrouting-bin", default=os.path.join(ROOT, "target", "release", "pgrouting-proxy"))
    parser.add_argument("--pgrouting-bin2", help="another build, as target pgrouting2")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME=BIN[,KEY=VALUE]...",
        help="one more target: a build of our proxy, settings of its document by dotted path (process.workers=2) and "
        "variables of its environment (in capitals)",
    )
    parser.add_argument("--out", help="the folder for the results (bench/ for a full run, else target/bench/)")
    return parser, parser.parse_args()


def plan(parser, args):
    """Reads the command line into a run; a wrong one ends the program."""
    names = args.targets or (ALL_TARGETS[:-1] if args.quick else ALL_TARGETS)
    protocols = args.protocols or (["simple", "prepared"] if args.quick else PROTOCOLS)
    clients = args.clients or ([16] if args.quick else CLIENTS)
    rounds = args.rounds or (2 if args.quick else 5)
    seconds = args.seconds or (1 if args.quick else 2)
    for given, known, what in ((names, ALL_TARGETS, "target"), (protocols, PROTOCOLS, "protocol")):
        unknown = [name for name in given if name not in known]
        if unknown:
            parser.error(f"unknown {what}: {', '.join(unknown)}")
    try:
        variants = our_variants(args, names)
    except ValueError as error:
        parser.error(str(error))
    is_full = (
        not args.quick and set(names) == {*ALL_TARGETS} and protocols == PROTOCOLS and set(CLIENTS) <= set(clients)
        and rounds >= 3 and seconds >= 1 and args.idle_clients >= 1000 and args.connect_clients > 0
    )
    ours = [catalogue.Pgrouting(variant, args.workers) for variant in variants]
    if OURS_TLS in names:
        ours.append(catalogue.PgroutingTls(catalogue.Variant(OURS, args.pgrouting_bin), args.workers))
    if OURS_SPLIT in names:
        split = catalogue.PgroutingSplit(catalogue.Variant(OURS, args.pgrouting_bin), args.workers)
        ours.append(split)
    if OURS_MIRROR in names:
        variant = catalogue.Variant(OURS, args.pgrouting_bin)
        ours += [catalogue.PgroutingMirror(variant, args.workers, state) for state in catalogue.PgroutingMirror.STATES]
    targets = [target for target in catalogue.standard_targets() if target.name in names] + ours
    if args.crowd:
        targets = crowded(targets, args.crowd)
    crowds = sum(target.crowd for target in targets)
    if not memory.allow_files(args.idle_clients, max([*clients, args.connect_clients]), crowds):
        parser.error("the limit of open files (ulimit -Hn) is too low for so many clients")
    if args.out and os.path.realpath(args.out) == HERE and not is_full:
        parser.error("only a full run writes to bench/")
    return Run(
        protocols=protocols, clients=clients, connect_clients=args.connect_clients, idle_clients=args.idle_clients,
        rounds=rounds, seconds=seconds, scale=args.scale,
        targets=targets,
        is_full=is_full, out=args.out or (HERE if is_full else SCRATCH),
        references=REFERENCES + ([PEER_TLS] if PEER_TLS in names else []) + ([OURS] if OURS in names and (len(ours) > 1 or args.crowd) else []),
        command=shlex.join(["bench/run.py", *sys.argv[1:]]),
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), commit=machine.commit(),
        facts=machine.machine_facts() + machine.version_facts() + [fact_of(target) for target in ours],
    )


def crowded(targets, clients):
    """The targets, and after each that pools its twin with so many idle clients."""
    found = []
    for target in targets:
        found.append(target)
        if target.name == "pgbouncer" and not target.is_one_to_one or isinstance(target, catalogue.Pgrouting):
            found.append(target.with_crowd(clients))
    return found


def our_variants(args, names):
    found = [catalogue.Variant(OURS, args.pgrouting_bin)] if OURS in names else []
    if args.pgrouting_bin2:
        found.append(catalogue.Variant(f"{OURS}2", args.pgrouting_bin2))
    found += [catalogue.Variant.parse(text) for text in args.variant]
    every = [variant.name for variant in found] + PEERS
    twice = {name for name in every if every.count(name) > 1}
    if twice:
        raise ValueError(f"more than one target named {', '.join(sorted(twice))}")
    return found


def fact_of(target):
    settings = {"process.workers": target.workers, **dict(target.variant.settings + target.variant.environment)}
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    return target.name, f"{machine.build_fact(target.variant.binary)}, {told}"


def execute(run, workspace):
    """Memory first, each target started afresh; then the rounds, with all targets up."""
    found = sampling.Samples([target.name for target in run.targets])
    server = postgres.Postgres(workspace)
    say(f"PostgreSQL with scale {run.scale} in {workspace.root}")
    server.create(run.scale)
    if run.idle_clients:
        weigh(run, workspace, server, found)
    limits = catalogue.Limits(max([*run.clients, run.connect_clients]))
    connections = sum(target.server_connections(limits) for target in run.targets) + 20
    server.start(max(300, connections))
    if any(target.needs_standbys for target in run.targets):
        server.start_standbys(STANDBYS, max(300, connections))
    for target in run.targets:
        target.start(workspace, server, limits)
        if target.fault:
            say(f"{target.label} {target.fault}")
            run.faults[target.label] = target.fault
    for number in range(1, run.rounds + 1):
        for index, cell in enumerate(run.cells()):
            one_cell(run, workspace, server, found, number, index, cell)
    return found


def weigh(run, workspace, server, found):
    # A relay and a target with a process for each client need a server connection for each idle one.
    server.start(min(run.idle_clients, memory.ONE_TO_ONE_MOST) + 100)
    for target in run.targets:
        if "simple" not in target.protocols or target.crowd or target.needs_standbys:
            continue
        row = sampling.Row.of(target, report.IDLE, memory.idle_clients(target, run.idle_clients))
        try:
            clients, metrics = memory.measure_memory(target, workspace, server, run.idle_clients)
        except memory.MemoryFailed as error:
            say(f"memory: {target.label}: {error}")
            found.fail(row, 1, str(error))
            continue
        none = {name: value for name, value in metrics.items() if name.endswith("_idle_0")}
        found.add(dataclasses.replace(row, clients=0), 1, none)
        found.add(row, 1, {name: value for name, value in metrics.items() if name not in none})
        each = metrics["rss_kib_per_idle_client"]
        say(f"memory: {target.label}: {metrics['rss_kib_idle_0']} KiB, {each:.1f} KiB for each of {clients} clients")
    server.stop()


def one_cell(run, workspace, server, found, number, index, cell):
    """Runs one cell with every target, beginning with another one each time."""
    able = [target for target in run.targets if cell.protocol in target.protocols]
    if not able:
        return
    first = (number + index) % len(able)
    told = []
    for target in able[first:] + able[:first]:
        row = sampling.Row.of(target, cell.protocol, cell.clients)
        if target.fault:
            found.fail(row, number, report.NOT_RUNNING)
            continue
        try:
            is_ours = isinstance(target, catalogue.PgroutingSplit)
            before = target.leases() if is_ours else {}
            target.begin_cell()
            try:
                metrics = load.run_cell(
                    cell, run.seconds, {**server.libpq(target.port), **target.client_environment}, target.pid,
                    server.started.pid, workspace.root,
                )
            finally:
                target.end_cell()
            if run.is_mirror(target):
                metrics |= {"rss_kib": measure.memory_kib([target.pid])[0], **target.mirror_metrics()}
            metrics |= target.shares(before) if is_ours else {}
            found.add(row, number, metrics)
            told.append(f"{target.name} {metrics['cpu_ms_per_1000_tx']:.1f}")
        except load.CellFailed as error:
            found.fail(row, number, str(error))
            told.append(f"{target.name} FAILED ({error})")
        if not target.check_alive():
            run.faults[target.label] = target.fault
    say(f"round {number}/{run.rounds} {cell}: CPU ms per 1,000 tx: {', '.join(told)}")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def interrupt(_number, _frame):
    """Ends the run as Ctrl-C does, so that the workspace is closed on the way out."""
    raise KeyboardInterrupt


def main():
    parser, args = arguments()
    packages.install_missing()
    run = plan(parser, args)
    signal.signal(signal.SIGTERM, interrupt)
    workspace = process.Workspace()
    try:
        found = execute(run, workspace)
    except KeyboardInterrupt:
        say("interrupted; nothing is written")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        workspace.close()
    if run.is_full and OURS in run.faults and run.out == HERE:
        say("our own target did not serve, so the checked-in results stay as they are")
        run.out = SCRATCH
    report.write(run.out, run, found)
    say(f"results are in {os.path.relpath(run.out)}")
    return 1 if run.faults or found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
