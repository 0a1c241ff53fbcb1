#!/usr/bin/env python3
"""Compares a suite's results through the proxy with those straight against PostgreSQL.

What passes straight must pass through the proxy, unless `differences/SUITE.MODE.txt` names it with a reason. Ends with
1 when something else is different.
"""

import pathlib
import sys

LISTS = pathlib.Path(__file__).parent / "differences"
# A reason that begins so is of a test that fails at times: it is not missed when it passes.
AT_TIMES = "at times"


def read_results(folder, suite, way):
    """Outcomes by test. A test that ran twice is as bad as its worst run."""
    rank = {"skipped": 0, "passed": 1, "failed": 2}
    outcomes = {}
    path = folder / suite / way / "results"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        outcome, _, name = line.partition(" ")
        outcomes[name] = max(outcome, outcomes.get(name, outcome), key=rank.__getitem__)
    return outcomes


def read_list(suite, mode):
    """Reasons by test, from lines of `NAME  # reason`."""
    path = LISTS / f"{suite}.{mode}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    parts = (line.partition("  # ") for line in lines if line.strip())
    return {name.strip(): reason.strip() for name, _, reason in parts}


def count(outcomes, outcome):
    return sum(1 for found in outcomes.values() if found == outcome)


def compare(straight, through, listed, mode):
    """Prints what is different and tells whether all of it is listed."""
    is_good = True
    if not through:
        print(f"  {mode}: nothing ran")
        return False
    for name in sorted(name for name, outcome in straight.items() if outcome == "passed"):
        outcome = through.get(name, "not run")
        if outcome == "passed":
            continue
        reason = listed.get(name)
        is_good &= bool(reason)
        print(f"  {mode}: {outcome}: {name}: {reason or 'NOT LISTED'}")
    for name, reason in sorted(listed.items()):
        if not reason:
            print(f"  {mode}: listed without a reason: {name}")
            is_good = False
        elif through.get(name) == "passed" and not reason.startswith(AT_TIMES):
            print(f"  {mode}: listed, and passed: {name}")
        elif name not in straight:
            print(f"  {mode}: listed, and there is no such test: {name}")
    return is_good


def main():
    folder, suite, *modes = sys.argv[1:]
    folder = pathlib.Path(folder)
    straight = read_results(folder, suite, "straight")
    is_good = count(straight, "passed") > 0
    through = {mode: read_results(folder, suite, mode) for mode in modes}
    counts = [f"{count(straight, 'passed')} straight ({count(straight, 'failed')} failed, {count(straight, 'skipped')} skipped)"]
    counts += [f"{count(outcomes, 'passed')} in {mode} mode" for mode, outcomes in through.items()]
    print(f"{suite}: passed {', '.join(counts)}")
    for mode, outcomes in through.items():
        is_good &= compare(straight, outcomes, read_list(suite, mode), mode)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
