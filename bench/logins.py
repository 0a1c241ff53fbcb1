"""A small PostgreSQL client that logs in with SCRAM-SHA-256 and then does next to nothing."""

import base64
import functools
import hashlib
import hmac
import os
import socket
import struct
import time

TIMEOUT_SECONDS = 20


class LoginError(Exception):
    """The server's error text, or what was wrong with its answer."""


@functools.lru_cache(maxsize=64)
def salted_password(password, salt, iterations):
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


def scram_proof(password, first_bare, server_first, nonce):
    """The client's last message and the signature that the server must answer with (RFC 5802)."""
    fields = dict(part.split("=", 1) for part in server_first.split(","))
    if not fields["r"].startswith(nonce):
        raise LoginError("the server's nonce does not start with ours")
    salted = salted_password(password, base64.b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    final_bare = f"c=biws,r={fields['r']}"
    message = f"{first_bare},{server_first},{final_bare}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
    return f"{final_bare},p={base64.b64encode(proof).decode()}", base64.b64encode(expected).decode()


class Client:
    """One logged-in connection."""

    def __init__(self, port, user, database, password):
        self.buffer = b""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.log_in(user, database, password)
        except BaseException:
            self.socket.close()
            raise

    def log_in(self, user, database, password):
        body = b"".join(text.encode() + b"\0" for text in ("user", user, "database", database)) + b"\0"
        self.socket.sendall(struct.pack("!ii", len(body) + 8, 196608) + body)
        nonce = base64.b64encode(os.urandom(18)).decode()
        first_bare = f"n=,r={nonce}"
        expected = None
        while True:
            kind, body = self.message()
            if kind == b"Z":
                if expected is None:
                    raise LoginError("the server did not ask for SCRAM-SHA-256")
                return
            if kind != b"R":
                continue
            step, data = struct.unpack("!i", body[:4])[0], body[4:]
            if step == 10:
                first = f"n,,{first_bare}".encode()
                self.send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(first)) + first)
            elif step == 11:
                final, expected = scram_proof(password, first_bare, data.decode(), nonce)
                self.send(b"p", final.encode())
            elif step == 12:
                if data.decode() != f"v={expected}":
                    raise LoginError("the server's signature is wrong")
            elif step != 0:
                raise LoginError(f"the server asks for authentication {step}")

    def query(self, text):
        """Runs one statement and throws its rows away."""
        self.send(b"Q", text.encode() + b"\0")
        while self.message()[0] != b"Z":
            pass

    def send(self, kind, body):
        self.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def message(self):
        """The next message; an ErrorResponse is raised."""
        kind, length = struct.unpack("!ci", self.exactly(5))
        body = self.exactly(length - 4)
        if kind == b"E":
            fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
            raise LoginError(f"{fields.get(b'C', '?????')}: {fields.get(b'M', '')}")
        return kind, body

    def exactly(self, count):
        while len(self.buffer) < count:
            more = self.socket.recv(65536)
            if not more:
                raise LoginError("the connection was closed")
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def close(self):
        try:
            self.send(b"X", b"")
        except OSError:
            pass
        self.socket.close()


def log_in_many(port, account, count):
    """Logs so many clients in, one after the other. When one fails, none stays."""
    connected = []
    try:
        for _ in range(count):
            connected.append(Client(port, *account))
    except (OSError, LoginError) as error:
        for client in connected:
            client.close()
        raise LoginError(f"login {len(connected) + 1} of {count}: {error}") from error
    return connected


def wait_until_serving(port, account, is_alive, seconds=20):
    """Tries to log in and ask until it works; raises the last failure when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            client = Client(port, *account)
            client.query("SELECT 1")
            client.close()
            return
        except (OSError, LoginError) as error:
            if not is_alive():
                raise RuntimeError("it ended at once") from error
            if time.monotonic() > deadline:
                raise RuntimeError(f"no login within {seconds} s: {error}") from error
        time.sleep(0.05)
