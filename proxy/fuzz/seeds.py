#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into proxy/fuzz/corpus: what clients and servers say on a good day."""
import pathlib
import struct


def message(kind, body=b""):
    return kind + struct.pack(">I", len(body) + 4) + body


def first(code, rest=b""):
    return struct.pack(">II", len(rest) + 8, code) + rest


def startup(minor, *pairs):
    return first(196608 + minor, b"".join(name + b"\0" + value + b"\0" for name, value in pairs) + b"\0")


USER, DATABASE = (b"user", b"app"), (b"database", b"shop")
STARTUP = {
    "ssl": first(80877103),
    "gssenc": first(80877104),
    "cancel": first(80877102, struct.pack(">iI", 4711, 0x01020304)),
    "cancel-32": first(80877102, struct.pack(">i", 4711) + bytes(range(32))),
    "cancel-256": first(80877102, struct.pack(">i", 4711) + bytes(range(256))),
    "user": startup(0, USER),
    "database": startup(2, USER, DATABASE, (b"application_name", b"psql"), (b"client_encoding", b"UTF8")),
    "options": startup(0, USER, (b"options", rb"-c search_path=a\ b --work_mem=4MB -cDateStyle=ISO")),
    "protocol-options": startup(9999, USER, (b"_pq_.test_protocol_negotiation", b"")),
    "replication": startup(0, USER, (b"replication", b"true")),
}

SYNC, FLUSH = message(b"S"), message(b"H")
PARSE = message(b"P", b"s1\0SELECT $1\0" + struct.pack(">HI", 1, 23))
BIND = message(b"B", b"\0s1\0" + struct.pack(">HHI", 0, 1, 1) + b"7" + struct.pack(">H", 0))
DESCRIBE, EXECUTE, CLOSE = message(b"D", b"Ss1\0"), message(b"E", b"\0\0\0\0\0"), message(b"C", b"Pp1\0")
ERROR = b"SERROR\0VERROR\0C42P01\0Mrelation \"x\" does not exist\0P15\0\0"
WIRE = {
    "query": message(b"Q", b"SELECT 1\0"),
    "batch": PARSE + DESCRIBE + BIND + EXECUTE + CLOSE + SYNC,
    "flush": PARSE + FLUSH + BIND + EXECUTE + SYNC,
    "call": message(b"F", struct.pack(">IHHIH", 1, 0, 0, 0, 0)),
    "copy": message(b"d", b"1\t2\n") + message(b"c") + SYNC,
    "copy-fail": message(b"f", b"no\0"),
    "terminate": message(b"X"),
    "query-terminate": PARSE + message(b"X"),
    "long": message(b"Q", b"x" * 700),
    "password": message(b"p", b"SCRAM-SHA-256\0" + struct.pack(">I", 9) + b"n,,n=,r=x"),
    "login": message(b"R", struct.pack(">I", 10) + b"SCRAM-SHA-256\0\0")
    + message(b"R", struct.pack(">I", 11) + b"r=xy,s=c2FsdA==,i=4096")
    + message(b"R", struct.pack(">I", 12) + b"v=c2ln")
    + message(b"R", struct.pack(">I", 0)),
    "greeting": message(b"S", b"DateStyle\0ISO, MDY\0")
    + message(b"K", struct.pack(">iI", 4711, 0x01020304))
    + message(b"Z", b"I"),
    "long-key": message(b"K", struct.pack(">i", 4711) + bytes(range(256))),
    "rows": message(b"T", struct.pack(">H", 1) + b"a\0" + struct.pack(">IHIHIH", 0, 0, 23, 4, 0xFFFFFFFF, 0))
    + message(b"D", struct.pack(">HI", 3, 1) + b"t" + struct.pack(">II", 0xFFFFFFFF, 2) + b"ab")
    + message(b"C", b"SELECT 1\0")
    + message(b"Z", b"T"),
    "error": message(b"E", ERROR) + message(b"N", ERROR) + message(b"Z", b"E"),
    "notification": message(b"A", struct.pack(">I", 4711) + b"channel\0payload\0"),
}

for target, seeds in {"startup": STARTUP, "wire": WIRE}.items():
    folder = pathlib.Path(__file__).parent / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in seeds.items():
        (folder / f"seed-{name}").write_bytes(seed)
