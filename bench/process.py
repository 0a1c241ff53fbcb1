"""Starts and stops the processes of one run as an unprivileged user, in one temporary folder."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

STOP_SECONDS = 10


class Started:
    """A process of this run: its pid is the root of its tree, and its output goes to `log`."""

    def __init__(self, name, popen, log):
        self.name = name
        self.popen = popen
        self.log = log

    @property
    def pid(self):
        return self.popen.pid

    def is_running(self):
        return self.popen.poll() is None

    def log_tail(self, lines=15):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:]).strip()


class Workspace:
    """The temporary folder of a run and all that was started in it; `close` ends and removes both."""

    def __init__(self, base=None):
        self.root = tempfile.mkdtemp(prefix="pgrouting-bench-", dir=base)
        os.chmod(self.root, 0o755)
        # PostgreSQL and PgBouncer refuse to run as root, so everything runs as Debian's user postgres then.
        self.account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        self.owned(self.root)
        self.running = []

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def owned(self, path):
        """Gives a file or folder to the user whom everything runs as."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path

    def folder(self, *parts):
        path = self.path(*parts)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return self.owned(path)

    def write(self, text, *parts):
        """Writes a file that only that user can read: some hold the password of the run."""
        path = self.path(*parts)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        return self.owned(path)

    def identity(self):
        if not self.account:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def run(self, argv, env=None, text=None):
        """Runs a command to its end, and raises with its output when it fails. Without `env` it has ours."""
        done = subprocess.run(
            argv, env=env, input=text, capture_output=True, text=True,
            cwd=self.root, check=False, **self.identity(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def start(self, name, argv, env=None):
        log = self.path(f"{name}.log")
        with open(log, "ab") as output:
            popen = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=self.root, start_new_session=True, **self.identity(),
            )
        started = Started(name, popen, log)
        self.running.append(started)
        return started

    def stop(self, started, how=signal.SIGTERM):
        """Asks the process to end, and after ten seconds ends it and its process group."""
        if started not in self.running:
            return
        self.running.remove(started)
        if started.popen.returncode is None:
            os.kill(started.pid, how)
            deadline = time.monotonic() + STOP_SECONDS
            while not has_ended(started.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            # The process is not reaped yet, so its number cannot belong to somebody else's group.
            os.killpg(started.pid, signal.SIGKILL)
            started.popen.wait()

    def close(self):
        for started in reversed(list(self.running)):
            self.stop(started, signal.SIGINT)
        shutil.rmtree(self.root, ignore_errors=True)


def has_ended(pid):
    """Says whether a child has ended, and leaves it to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


GIVEN_PORTS = set()


def free_port():
    """A loopback port below the range that outgoing connections take theirs from, each given once."""
    while True:
        port = random.randrange(15000, 30000)
        if port in GIVEN_PORTS:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        GIVEN_PORTS.add(port)
        return port
