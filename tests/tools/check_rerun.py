#!/usr/bin/env python3
"""Tests rerun_failed.py with CTest projects made here: a test that fails once, one that always fails, one that passes."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent / "rerun_failed.py"


class Rerun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        self.list = self.root / "unsteady.txt"
        self.list.write_text("# a comment\n")

    def run_twice(self, *tests):
        """Runs the tests, then the tool. Returns its exit code, verdicts and output."""
        commands = {"passes": "exit 0", "broken": "echo failed to start; exit 1",
                    "once": f"test -e {self.root}/ran && exit 0; touch {self.root}/ran; echo only at first; exit 1"}
        lines = [f'add_test([=[{name}]=] "/bin/sh" "-c" [=[{commands[name.split(".")[-1]]}]=])' for name in tests]
        (self.root / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
        ctest = ["ctest", "--test-dir", str(self.root)]
        subprocess.run([*ctest, "--output-junit", str(self.root / "tests.xml")], capture_output=True, check=False)
        done = subprocess.run([sys.executable, "-B", str(TOOL), "--report", str(self.root / "tests.xml"), "--list", str(self.list), "--most", "2", "--", *ctest],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        verdicts = done.stdout.split("\n== Verdicts\n")[-1].splitlines()
        return done.returncode, verdicts, done.stdout

    def entries(self):
        return [line.split()[1] for line in self.list.read_text().splitlines() if not line.startswith("#")]

    def test_one_that_passes_by_itself_is_unsteady_and_listed(self):
        code, verdicts, output = self.run_twice("passes", "suite.once")
        self.assertEqual((code, verdicts), (0, ["unsteady suite.once"]))
        self.assertIn("only at first", output)
        self.assertIn("run again by itself, passed", output)
        self.assertEqual(self.entries(), ["suite.once"])

    def test_one_that_fails_again_has_failed(self):
        code, verdicts, _ = self.run_twice("passes", "broken")
        self.assertEqual((code, verdicts), (1, ["failed broken"]))
        self.assertEqual(self.entries(), [])

    def test_a_name_is_no_pattern(self):
        code, verdicts, _ = self.run_twice("a.once", "abonce.broken")
        self.assertEqual((code, verdicts), (1, ["unsteady a.once", "failed abonce.broken"]))

    def test_one_that_is_listed_twice_has_failed(self):
        self.list.write_text("2026-01-01 once\n2026-01-02 once\n")
        code, verdicts, _ = self.run_twice("once")
        self.assertEqual((code, verdicts), (1, ["failed once"]))

    def test_one_that_is_listed_once_is_still_unsteady(self):
        self.list.write_text("2026-01-01 once\n2026-01-02 other\n")
        self.assertEqual(self.run_twice("once")[:2], (0, ["unsteady once"]))

    def test_many_failures_are_not_run_again(self):
        code, verdicts, output = self.run_twice("once", "a.broken", "b.broken")
        self.assertEqual((code, sorted(verdicts)), (1, ["failed a.broken", "failed b.broken", "failed once"]))
        self.assertIn("3 tests failed, more than 2", output)


if __name__ == "__main__":
    unittest.main()
