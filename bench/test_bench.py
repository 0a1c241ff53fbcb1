#!/usr/bin/env python3
"""Checks the parts of the benchmark that need no server: run it as it is."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

import load  # noqa: E402
import logins  # noqa: E402
import measure  # noqa: E402
import run  # noqa: E402
import samples  # noqa: E402
import targets  # noqa: E402


class Scram(unittest.TestCase):
    def test_proof_is_that_of_rfc_7677(self):
        nonce = "rOprNGfwEbeRWgbNEkqO"
        server_first = f"r={nonce}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        final, expected = logins.scram_proof("pencil", f"n=user,r={nonce}", server_first, nonce)
        self.assertTrue(final.endswith("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="), final)
        self.assertEqual(expected, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")

    def test_foreign_nonce_is_refused(self):
        with self.assertRaises(logins.LoginError):
            logins.scram_proof("x", "n=,r=a", "r=b,s=AAAA,i=4096", "a")


class Log(unittest.TestCase):
    def test_only_transactions_within_the_window_count(self):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write("0 1 100 0 1000 0\n1 1 200 0 1000 500000\n0 2 300 0 1001 0\n")
            file.flush()
            self.assertEqual(dict(load.latencies(file.name, 1000.2, 1001.0)), {b"1": [200]})

    def test_aborted_client_fails_the_cell(self):
        with self.assertRaisesRegex(load.CellFailed, "client 3 aborted"):
            load.check(0, "pgbench: error: client 3 aborted in command 1\nnumber of failed transactions: 0 (0.000%)")

    def test_failed_transactions_fail_the_cell(self):
        with self.assertRaisesRegex(load.CellFailed, "failed transactions: 2"):
            load.check(0, "number of failed transactions: 2 (0.010%)")

    def test_clean_end_passes(self):
        load.check(0, "number of failed transactions: 0 (0.000%)")


class Variants(unittest.TestCase):
    def test_capitals_are_environment_and_the_rest_settings(self):
        variant = targets.Variant.parse("two=/bin/x,process.workers=2,SHAPE=shared")
        self.assertEqual((variant.name, variant.binary), ("two", "/bin/x"))
        self.assertEqual(variant.settings, (("process.workers", "2"),))
        self.assertEqual(variant.environment, (("SHAPE", "shared"),))

    def test_text_without_binary_is_refused(self):
        for text in ("two", "two=", "=/bin/x", "two=/bin/x,workers"):
            with self.assertRaises(ValueError):
                targets.Variant.parse(text)

    def test_setting_is_json_where_it_can_be(self):
        document = {"process": {"workers": 1}}
        targets.set_path(document, "process.workers", "2")
        targets.set_path(document, "pooling.mode", "Session")
        self.assertEqual(document, {"process": {"workers": 2}, "pooling": {"mode": "Session"}})


class Crowds(unittest.TestCase):
    def test_only_what_pools_gets_a_twin_with_a_crowd(self):
        ours = targets.Pgrouting(targets.Variant.parse("pgrouting=/bin/x"), 1)
        bouncers = [targets.Pgbouncer(), targets.Pgbouncer(mode="session")]
        found = run.crowded([targets.Haproxy(), *bouncers, ours], 9)
        self.assertEqual(
            [(target.name, target.crowd) for target in found],
            [("haproxy", 0), ("pgbouncer", 0), ("pgbouncer-crowd", 9), ("pgbouncer", 0), ("pgrouting", 0),
             ("pgrouting-crowd", 9)],
        )


class Summaries(unittest.TestCase):
    def test_ratio_pairs_cells_of_the_same_round(self):
        found = samples.Samples(["a", "b"])
        a, b = (samples.Row(name, name, "PoolingOnly", None, "simple", 16) for name in "ab")
        for number, (mine, theirs) in enumerate([(10, 20), (30, 30), (8, 16)]):
            found.add(a, number, {"cpu_ms_per_1000_tx": mine})
            found.add(b, number, {"cpu_ms_per_1000_tx": theirs})
        # A round of which one half failed is left out.
        found.add(a, 3, {"cpu_ms_per_1000_tx": 99})
        self.assertEqual(found.ratio(a, "b"), (0.5, 0.5, 1.0))
        self.assertIsNone(found.ratio(b, "b"))


class Accounts(unittest.TestCase):
    def test_work_of_children_that_ended_is_counted(self):
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        script = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\ntime.sleep(60)"
        parent = subprocess.Popen([sys.executable, "-c", script])
        try:
            used, deadline = 0, time.monotonic() + 30
            while used < 300_000_000 - measure.TICK_NS and time.monotonic() < deadline:
                used = measure.usage([parent.pid]).cpu_ns
            self.assertGreater(used, 280_000_000)
            self.assertIn(parent.pid, measure.process_tree(os.getpid()))
        finally:
            parent.kill()
            parent.wait()


if __name__ == "__main__":
    unittest.main()
