"""The targets of a run: PostgreSQL itself, a plain relay, two poolers, and builds and settings of our proxy."""

import copy
import dataclasses
import json
import os
import re
import select
import shutil
import signal
import subprocess
import urllib.request

import logins
import process
from load import CONNECT, APART
from measure import process_tree, threads

POOL = 20
EVERY_PROTOCOL = frozenset({"simple", "extended", "prepared", CONNECT})
PEER_STAGE = "PoolingOnly"
SPLIT_STAGE = "Split"


@dataclasses.dataclass
class Limits:
    """What a target must be able to hold: clients, and a server connection for each where it does not pool."""

    clients: int
    pool: int = POOL

    @property
    def children(self):
        return self.clients + 4


class Target:
    """What pgbench connects to. A subclass says how to start it."""

    name = ""
    # What the tables call it, where the name does not say all.
    label = ""
    stage = PEER_STAGE
    mode = None
    protocols = EVERY_PROTOCOL
    stop_signal = signal.SIGTERM
    # Whether each client holds a server connection of its own, however long it is idle.
    is_one_to_one = False
    # Whether it sends reads to standbys, which have to be there then.
    needs_standbys = False
    # Clients that are logged in beside those of pgbench, and idle.
    crowd = 0
    # What pgbench's environment has for it.
    client_environment = {}

    def __init__(self):
        self.label = self.label or self.name
        self.port = None
        self.started = None
        self.fault = None
        self.idle = []
        self.idle_events = None

    def with_crowd(self, clients):
        """The same target once more, for the same rounds, with so many idle clients."""
        twin = copy.copy(self)
        twin.crowd = clients
        twin.name = f"{self.name}-crowd"
        twin.label = f"{self.label} + {clients:,} idle"
        return twin

    def server_connections(self, limits):
        return limits.children if self.is_one_to_one else limits.pool + 4

    def start(self, workspace, server, limits):
        """Starts it and logs in once. When that fails, `fault` says why, with the end of its log."""
        self.fault = None
        limits = dataclasses.replace(limits, clients=limits.clients + self.crowd)
        self.port = process.free_port()
        folder_name = re.sub(r"[^A-Za-z0-9.-]+", "-", self.label).strip("-")
        try:
            workspace.folder(folder_name)
            argv, environment = self.prepare(workspace, folder_name, server, limits)
            self.started = workspace.start(folder_name, argv, environment)
            logins.wait_until_serving(self.port, server.account, self.started.is_running)
            self.gather(server)
        except (RuntimeError, OSError, logins.LoginError) as error:
            said = ""
            if self.started:
                code = self.started.popen.poll()
                said = (f" with {code}" if code is not None else "") + f"\n{self.started.log_tail()}"
            self.stop(workspace)
            self.fault = f"does not start: {error}{said}".strip()

    def prepare(self, workspace, folder, server, limits):
        """Writes what it reads and gives its command line and environment."""
        raise NotImplementedError

    def gather(self, server):
        """Logs the crowd in. Each runs one statement, and from then on only waits."""
        self.idle = logins.log_in_many(self.port, server.account, self.crowd)
        self.idle_events = select.poll()
        for client in self.idle:
            client.query("SELECT 1")
            self.idle_events.register(client.socket, select.POLLIN)

    def stop(self, workspace):
        for client in self.idle:
            client.close()
        self.idle = []
        if self.started:
            workspace.stop(self.started, self.stop_signal)
            self.started = None

    def begin_cell(self):
        """What has to be done before its load begins."""

    def end_cell(self):
        """What has to be undone when it is over."""

    @property
    def pid(self):
        return self.started.pid

    def check_alive(self):
        """Notes a fault when it has ended by itself, or has sent one of its idle clients away."""
        if not self.fault and not self.started.is_running():
            self.fault = f"ended by itself with {self.started.popen.returncode}\n{self.started.log_tail()}"
        elif not self.fault and self.idle and self.idle_events.poll(0):
            self.fault = f"did not leave its idle clients alone\n{self.started.log_tail()}"
        return self.fault is None


class Direct(Target):
    """PostgreSQL with nothing in front of it: what the others add to."""

    name = "direct"
    is_one_to_one = True

    def start(self, workspace, server, limits):
        self.fault = None
        self.port = server.port
        self.started = server.started

    def stop(self, workspace):
        self.started = None


class Haproxy(Target):
    """A TCP relay in one thread: the least that a proxy can do."""

    name = "haproxy"
    label = "haproxy (TCP relay)"
    is_one_to_one = True

    def prepare(self, workspace, folder, server, limits):
        config = workspace.write(f"""
global
    nbthread 1
    maxconn {limits.clients + 50}
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen postgres
    bind 127.0.0.1:{self.port}
    server only 127.0.0.1:{server.port}
""", folder, "haproxy.cfg")
        return ["/usr/sbin/haproxy", "-db", "-f", config], None


class Pgbouncer(Target):
    """PgBouncer as its manual has it for speed: no log of logins, and SCRAM on both sides with the server's secret."""

    name = "pgbouncer"

    def __init__(self, mode="transaction", protocols=EVERY_PROTOCOL):
        super().__init__()
        self.mode = mode
        self.protocols = protocols
        if mode == "session":
            self.label = "pgbouncer (session mode)"
            self.is_one_to_one = True

    def prepare(self, workspace, folder, server, limits):
        users = workspace.write(f'"{server.account[0]}" "{server.verifier}"\n', folder, "users.txt")
        pool = limits.children if self.mode == "session" else limits.pool
        prepared = "max_prepared_statements = 200" if pgbouncer_keeps_prepared() else ""
        config = workspace.write(f"""
[databases]
{server.account[1]} = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = {self.mode}
default_pool_size = {pool}
max_client_conn = {limits.clients + 50}
log_connections = 0
log_disconnections = 0
log_stats = 0
{prepared}
""", folder, "pgbouncer.ini")
        return ["/usr/sbin/pgbouncer", config], None


def pgbouncer_keeps_prepared():
    """Whether it has prepared statements in transaction mode: from 1.21 on."""
    said = subprocess.run(["/usr/sbin/pgbouncer", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    return bool(version) and (int(version[1]), int(version[2])) >= (1, 21)


class OverTls:
    """A target with TLS to its clients, which must use it: a certificate of a P-256 key that is made for the run."""

    protocols = frozenset({"simple", CONNECT})
    client_environment = {"PGSSLMODE": "require"}

    @staticmethod
    def certificate(workspace, folder):
        """The files of a certificate and of its key."""
        certificate, key = (workspace.path(f"{folder}.{end}") for end in ("crt", "key"))
        workspace.run([
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
            "-subj", "/CN=localhost", "-keyout", key, "-out", certificate,
        ])
        return certificate, key


class PgbouncerTls(OverTls, Pgbouncer):
    """PgBouncer with TLS to its clients."""

    name = "pgbouncer-tls"
    label = "pgbouncer, TLS to clients"

    def __init__(self):
        super().__init__(protocols=OverTls.protocols)

    def prepare(self, workspace, folder, server, limits):
        argv, environment = super().prepare(workspace, folder, server, limits)
        certificate, key = self.certificate(workspace, folder)
        with open(argv[-1], "a", encoding="utf-8") as config:
            # Clear text is let in too, for the login that looks whether it serves.
            config.write(f"client_tls_sslmode = allow\nclient_tls_cert_file = {certificate}\nclient_tls_key_file = {key}\n")
        return argv, environment


class Pgpool(Target):
    """Pgpool-II that only keeps connections. It has a process and a server connection for each client."""

    name = "pgpool"
    label = "pgpool (process per client)"
    stop_signal = signal.SIGINT
    is_one_to_one = True

    def backends(self, server):
        """The servers, and how it treats them."""
        return f"""
backend_clustering_mode = 'raw'
load_balance_mode = off
sr_check_period = 0
{self.backend(0, server.port)}"""

    @staticmethod
    def backend(number, port):
        return f"""
backend_hostname{number} = '127.0.0.1'
backend_port{number} = {port}
backend_weight{number} = 1
backend_flag{number} = 'ALLOW_TO_FAILOVER'
"""

    def prepare(self, workspace, folder, server, limits):
        user, _, password = server.account
        home = workspace.path(folder)
        workspace.write(f"{user}:TEXT{password}\n", folder, "pool_passwd")
        hba = workspace.write("host all all 127.0.0.1/32 scram-sha-256\n", folder, "pool_hba.conf")
        pcp = workspace.write("", folder, "pcp.conf")
        config = workspace.write(f"""
{self.backends(server)}
listen_addresses = '127.0.0.1'
port = {self.port}
pcp_listen_addresses = ''
pcp_port = {process.free_port()}
socket_dir = '{home}'
pcp_socket_dir = '{home}'
wd_ipc_socket_dir = '{home}'
pid_file_name = '{home}/pgpool.pid'
logdir = '{home}'
work_dir = '{home}'
enable_pool_hba = on
pool_passwd = 'pool_passwd'
num_init_children = {limits.children}
listen_backlog_multiplier = 4
max_pool = 1
child_life_time = 0
child_max_connections = 0
connection_life_time = 0
client_idle_limit = 0
connection_cache = on
memory_cache_enabled = off
health_check_period = 0
log_min_messages = warning
""", folder, "pgpool.conf")
        return ["/usr/sbin/pgpool", "-n", "-f", config, "-a", hba, "-F", pcp], None


class PgpoolSplit(Pgpool):
    """The same that sends reads to the standbys; it chooses one for each session."""

    name = "pgpool-split"
    label = "pgpool, reads on two standbys"
    stage = SPLIT_STAGE
    needs_standbys = True

    def backends(self, server):
        user, database, password = server.account
        ports = [server.port, *server.standbys]
        return f"""
backend_clustering_mode = 'streaming_replication'
load_balance_mode = on
sr_check_period = 10
sr_check_user = '{user}'
sr_check_password = '{password}'
sr_check_database = '{database}'
delay_threshold = 0
{"".join(self.backend(number, port) for number, port in enumerate(ports))}
backend_weight0 = 0"""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A build of our proxy with settings of its document and variables of its environment."""

    name: str
    binary: str
    settings: tuple = ()
    environment: tuple = ()

    @classmethod
    def parse(cls, text):
        """Reads `NAME=BINARY[,path.of.setting=VALUE][,VARIABLE=VALUE]...`."""
        head, *rest = text.split(",")
        name, equals, binary = head.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not binary:
            raise ValueError(f"{text!r} is not NAME=BINARY[,path.of.setting=VALUE][,VARIABLE=VALUE]...")
        settings, environment = [], []
        for part in rest:
            key, equals, value = part.partition("=")
            if not equals or not key:
                raise ValueError(f"{part!r} is not KEY=VALUE")
            (environment if re.fullmatch(r"[A-Z_][A-Z0-9_]*", key) else settings).append((key, value))
        return cls(name, binary, tuple(settings), tuple(environment))


class Pgrouting(Target):
    """Our proxy in transaction mode, one build and one setting of it."""

    def __init__(self, variant, workers):
        super().__init__()
        self.variant = variant
        self.workers = workers
        self.name = self.label = variant.name
        self.stage = dict(variant.settings).get("stage", PEER_STAGE)
        self.copy = None

    def prepare(self, workspace, folder, server, limits):
        if self.copy is None:
            # A build during the run must not change what is measured.
            copy = workspace.path(f"{folder}.bin")
            shutil.copyfile(self.variant.binary, copy)
            os.chmod(copy, 0o755)
            self.copy = copy
        config = workspace.write(json.dumps(self.document(server, limits), indent=2), folder, "config.yaml")
        return [self.copy, "--config", config], {**os.environ, **dict(self.variant.environment)}

    def document(self, server, limits):
        """The config document; JSON is YAML."""
        user, database, password = server.account
        document = {
            "version": 1,
            "generation": 1,
            "pool": f"bench/{self.name}",
            "stage": PEER_STAGE,
            "process": {
                "listen": f"127.0.0.1:{self.port}",
                "adminListen": f"127.0.0.1:{process.free_port()}",
                "probeListen": f"127.0.0.1:{process.free_port()}",
                "workers": self.workers,
            },
            "servers": [{"name": "only", "host": "127.0.0.1", "port": server.port}],
            "probe": {"database": database},
            "auth": {"type": "UserList", "users": [{"name": user, "password": password}]},
            "pooling": {
                "mode": "Transaction",
                "maxServerConnections": limits.pool,
                "maxClientConnections": limits.clients + 50,
            },
            "drainTimeout": "1s",
        }
        for path, value in self.variant.settings:
            set_path(document, path, value)
        return document


class PgroutingTls(OverTls, Pgrouting):
    """The same build with TLS to its clients."""

    def __init__(self, variant, workers):
        super().__init__(variant, workers)
        self.name = f"{variant.name}-tls"
        self.label = f"{variant.name}, TLS to clients"
        self.files = None

    def prepare(self, workspace, folder, server, limits):
        self.files = self.certificate(workspace, folder)
        return super().prepare(workspace, folder, server, limits)

    def document(self, server, limits):
        certificate, key = self.files
        document = super().document(server, limits)
        document["tls"] = {"client": {"mode": "Allow", "certificateFile": certificate, "keyFile": key}}
        return document


class PgroutingSplit(Pgrouting):
    """The same build at the stage Split, with two standbys."""

    stage = SPLIT_STAGE
    needs_standbys = True

    def __init__(self, variant, workers):
        super().__init__(variant, workers)
        self.name = f"{variant.name}-split"
        self.label = f"{variant.name}, reads on two standbys"
        self.stage = SPLIT_STAGE
        self.probe_port = None

    def document(self, server, limits):
        document = super().document(server, limits)
        document["stage"] = SPLIT_STAGE
        document["servers"] += [
            {"name": f"standby{number}", "host": "127.0.0.1", "port": port}
            for number, port in enumerate(server.standbys, 1)
        ]
        self.probe_port = int(document["process"]["probeListen"].rpartition(":")[2])
        return document

    def leases(self):
        """How many transactions each server has been given so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(r'^pgrouting_proxy_server_leases_total\{server="([^"]+)"\} (\d+)$', text, re.MULTILINE)
        return {name: int(count) for name, count in found}

    def shares(self, before):
        """Since then: the primary's share of all transactions, and the busier standby's of the standbys'."""
        after = self.leases()
        given = {name: count - before.get(name, 0) for name, count in after.items()}
        primary = given.pop("only", 0)
        replicas = sum(given.values())
        return {
            "primary_share": primary / max(1, primary + replicas),
            "busier_replica_share": max(given.values(), default=0) / max(1, replicas),
        }


class PgroutingMirror(Pgrouting):
    """The same build that copies every read to another database, which is in one state or another."""

    stage = "Mirror"
    needs_standbys = True
    protocols = frozenset({APART})
    STATES = {
        "off": "a mirror that is not in effect",
        "healthy": "a mirror",
        "stopped": "a mirror that nobody listens for",
        "refusing": "a mirror that refuses each login",
        "hung": "a mirror whose processes are stopped",
        "slow": "a mirror that takes 20 ms for each statement",
    }

    def __init__(self, variant, workers, state):
        super().__init__(variant, workers)
        self.state = state
        self.name = f"{variant.name}-mirror-{state}"
        self.label = self.STATES[state]
        self.stage = SPLIT_STAGE if state == "off" else "Mirror"
        self.stopped = []
        self.server = None
        self.probe_port = None

    def document(self, server, limits):
        document = super().document(server, limits)
        document["stage"] = self.stage
        port = {"stopped": process.free_port(), "hung": server.standbys[1]}
        document["mirror"] = {
            "host": "127.0.0.1", "port": port.get(self.state, server.standbys[0]), "transactionTimeout": "1s",
        }
        if self.state == "refusing":
            document["mirror"]["database"] = "there_is_none"
        if self.state == "slow":
            document["mirror"]["database"] = server.SLOW
        self.server = server
        self.probe_port = int(document["process"]["probeListen"].rpartition(":")[2])
        return document

    def mirror_metrics(self):
        """How many transactions the mirror has got so far, and the mean time of a request here and there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        value = lambda name: float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # noqa: E731
        offered, mirrored = (value(f"pgrouting_proxy_mirror_{name}_total") for name in ("offered", "mirrored"))
        found = {"mirrored_share": mirrored / offered} if offered else {}
        for side, name in (("here", "pgrouting_proxy_mirror_source_seconds"), ("there", "pgrouting_proxy_mirror_seconds")):
            if value(f"{name}_count"):
                found[f"mean_us_{side}"] = value(f"{name}_sum") / value(f"{name}_count") * 1e6
        return found

    def begin_cell(self):
        """Parts those who serve clients from the mirror; stops the processes of a hung mirror where they are."""
        first, rest = {0}, set(range(1, os.cpu_count())) or {0}
        self.pin(self.server.started.pid, first, first)
        self.pin(self.pid, first, rest)
        for pid in self.server.standby_pids:
            self.pin(pid, rest, rest)
        if self.state == "hung":
            self.stopped = process_tree(self.server.standby_pids[1])
            for pid in self.stopped:
                os.kill(pid, signal.SIGSTOP)

    def end_cell(self):
        """Takes that back."""
        for pid in self.stopped:
            os.kill(pid, signal.SIGCONT)
        self.stopped = []
        everywhere = set(range(os.cpu_count()))
        for pid in [self.server.started.pid, self.pid, *self.server.standby_pids]:
            self.pin(pid, everywhere, everywhere)

    @staticmethod
    def pin(root, cores, mirror_cores):
        """Has all threads of a tree run on these cores, the mirror's of a proxy on others."""
        for pid in process_tree(root):
            for thread, name in threads(pid):
                try:
                    os.sched_setaffinity(int(thread), mirror_cores if name == "mirror" else cores)
                except ProcessLookupError:
                    continue


def set_path(document, path, value):
    """Sets a field of the document by its dotted path. The value is read as JSON where it is JSON."""
    *parents, last = path.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    try:
        document[last] = json.loads(value)
    except ValueError:
        document[last] = value


def standard_targets():
    """The peers, in the order of the tables. PgBouncer stands there twice where its version needs it."""
    if pgbouncer_keeps_prepared():
        bouncers = [Pgbouncer()]
    else:
        bouncers = [
            Pgbouncer(protocols=EVERY_PROTOCOL - {"prepared"}),
            Pgbouncer(mode="session", protocols=frozenset({"prepared"})),
        ]
    return [Direct(), Haproxy(), *bouncers, Pgpool(), PgpoolSplit(), PgbouncerTls()]
