#!/usr/bin/env python3
"""Reads what a test runner wrote and prints `passed NAME`, `failed NAME` or `skipped NAME` for each test."""

import json
import re
import sys
import xml.etree.ElementTree


def junit(lines):
    for case in xml.etree.ElementTree.fromstring("".join(lines)).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield outcome, f"{case.get('classname', '')}::{case.get('name', '')}"


def go(lines):
    """The output of `go test -json`."""
    outcomes = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    for line in lines:
        if line.startswith("{"):
            event = json.loads(line)
            if event.get("Action") in outcomes and event.get("Test"):
                # Folders of one run are in the names of some.
                name = re.sub(r"/tmp/\w+/\d+/", "/tmp/", event["Test"])
                yield outcomes[event["Action"]], f"{event['Package']}::{name}"


def cargo(lines):
    """The output of `cargo test`, where a test is named after its crate's program too."""
    outcomes = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}
    program = ""
    for line in lines:
        if found := re.match(r"\s+Running .*/deps/(\w+)-[0-9a-f]+\)", line):
            program = found[1]
        elif found := re.match(r"test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line):
            yield outcomes[found[2]], f"{program}::{found[1]}"


def regress(lines):
    """The output of pg_regress and of pg_isolation_regress."""
    outcomes = {"ok": "passed", "FAILED": "failed"}
    for line in lines:
        if found := re.match(r"(?:test)?\s*([\w.-]+)\s+\.\.\. (ok|FAILED)", line):
            yield outcomes[found[2]], found[1]


def unittest(lines):
    """The output of Python's unittest at verbosity 2: `name (class) ... ok`, which other output may come between."""
    outcomes = {"ok": "passed", "FAIL": "failed", "ERROR": "failed", "expected failure": "passed"}
    name = None
    for line in lines:
        if found := re.match(r"(?:FAIL|ERROR): (.*)$", line):
            yield "failed", found[1]
            continue
        if found := re.match(r"(\w+ \([\w.]+\))", line):
            name = found[1]
        if found := re.search(r"\.\.\. (?:.*?)(ok|FAIL|ERROR|expected failure|skipped .*)$", line.rstrip()):
            if name:
                yield outcomes.get(found[1], "skipped"), name


def plain(lines):
    """Lines of our own suites: `ok NAME` or `FAILED NAME`."""
    outcomes = {"ok": "passed", "FAILED": "failed"}
    for line in lines:
        if found := re.match(r"(ok|FAILED) +([^:\n]+)", line):
            yield outcomes[found[1]], found[2].strip()


READERS = {reader.__name__: reader for reader in (junit, go, cargo, regress, unittest, plain)}

if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8", errors="replace") as file:
        for result in READERS[sys.argv[1]](file):
            print(*result)
