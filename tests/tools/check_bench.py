#!/usr/bin/env python3
"""Tests the judgement of bench/run.py with ratios written here: what is worse than recorded, and what is not judged."""
import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import run  # noqa: E402

RECORDED = {"calm": {"recorded": [0.30, 0.40, 0.35]}, "loaded": {"recorded": [0.40], "needs_idle_machine": True}}


def worse(found, busy=False):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        names = run.compare({name: (value, value, value) for name, value in found.items()}, RECORDED, busy)
    return names, shown.getvalue()


class Judgement(unittest.TestCase):
    def test_above_the_worst_recorded_and_the_margin_is_worse(self):
        self.assertEqual(worse({"calm": 0.48})[0], ["calm"])
        self.assertIn("WORSE than 0.4 by 20%", worse({"calm": 0.48})[1])

    def test_within_the_margin_is_the_same(self):
        self.assertEqual(worse({"calm": 0.45})[0], [])
        self.assertIn("same", worse({"calm": 0.26})[1])

    def test_below_the_best_recorded_and_the_margin_is_better(self):
        self.assertIn("better", worse({"calm": 0.25})[1])

    def test_what_needs_an_idle_machine_is_not_judged_on_a_busy_one(self):
        self.assertEqual(worse({"loaded": 0.9})[0], ["loaded"])
        names, shown = worse({"loaded": 0.9}, busy=True)
        self.assertEqual(names, [])
        self.assertIn("not judged", shown)
        self.assertEqual(worse({"calm": 0.9}, busy=True)[0], ["calm"])

    def test_a_ratio_without_a_record_is_new(self):
        names, shown = worse({"other": 5.0})
        self.assertEqual(names, [])
        self.assertIn("new", shown)

    def test_a_recorded_ratio_that_a_chosen_benchmark_did_not_report_is_absent(self):
        recorded = {"train/a": {}, "train/b": {}, "host/c": {}}
        self.assertEqual(run.absent({"train/a": [1, 1, 1]}, recorded, ["train"]), ["train/b"])
        self.assertEqual(run.absent({"train/a": [1, 1, 1]}, recorded, ["host", "train"]), ["train/b", "host/c"])

    def test_ratios_of_another_processor_count_only_where_there_are_none_of_this_one(self):
        records = {"old": {"a/b": {"recorded": [0.2, 0.3]}, "a/c": {"recorded": [1.0], "needs_idle_machine": True}}, "new": {"a/b": {"recorded": [0.5]}}}
        self.assertEqual(run.recorded_on("new", records), {"a/b": {"recorded": [0.5]}})
        self.assertEqual(run.recorded_on("third", records), {"a/b": {"recorded": [0.2, 0.3, 0.5]}, "a/c": {"recorded": [1.0], "needs_idle_machine": True}})
        self.assertEqual(records["old"]["a/b"]["recorded"], [0.2, 0.3])

    def test_a_ratio_is_recorded_for_the_processor(self):
        records = {"old": {"a/b": {"recorded": [0.2], "needs_idle_machine": True}}}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(run, "RECORDED", Path(folder) / "ratios.json"):
            run.record({"a/b": [0.4, 0.3, 0.5]}, "new", records)
            run.record({"a/c": [1.5, 1, 2], "a/b": [0.45, 0.4, 0.5]}, "new", records)
            written = json.loads(run.RECORDED.read_text())
        self.assertEqual(written["old"], {"a/b": {"recorded": [0.2], "needs_idle_machine": True}})
        self.assertEqual(written["new"], {"a/b": {"recorded": [0.4, 0.45], "needs_idle_machine": True}, "a/c": {"recorded": [1.5]}})

    def checked(self, ratios, exits=(0, 0), more=()):
        """Exit code of --check and these other flags, what it prints, and how often it ran each, where a program of the one benchmark reports these
        ratios one run after the other, and another a good one."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            (folder / "ratios.json").write_text(json.dumps({run.processor(): {name: {"recorded": [0.4]} for name in ("one/ratio", "one/other")}}))
            programs = []
            for name, values, codes in (("ratio", list(ratios), list(exits)), ("other", [0.4], [0])):
                programs.append(folder / f"{name}.py")
                programs[-1].write_text(f"import pathlib, sys\ncount = pathlib.Path({str(folder / name)!r})\n"
                                        "runs = len(count.read_text()) if count.exists() else 0\ncount.write_text('x' * (runs + 1))\n"
                                        f"print('ratio one/{name}', {values}[runs])\nsys.exit({codes}[runs])\n")
            with mock.patch.object(run, "RECORDED", folder / "ratios.json"), mock.patch.object(run, "used_by_others", lambda: 0.0), \
                    mock.patch.object(run, "benchmarks", lambda options: {"one": ("A benchmark", [[str(program)] for program in programs])}), \
                    mock.patch.object(sys, "argv", ["run.py", "--bin", str(folder), "--work", str(folder / "work"), "--check", *more]), \
                    contextlib.redirect_stdout(io.StringIO()) as shown:
                code = run.main()
            return code, shown.getvalue(), *(len((folder / name).read_text()) for name in ("ratio", "other"))

    def test_what_is_worse_is_measured_once_more(self):
        code, _, *runs = self.checked([0.4])
        self.assertEqual((code, runs), (0, [1, 1]))
        code, shown, *runs = self.checked([0.9, 0.4])
        self.assertEqual((code, runs), (0, [2, 1]))
        self.assertIn("WORSE than 0.4", shown)
        self.assertIn("no ratio is worse", shown)
        code, shown, *runs = self.checked([0.9, 0.8])
        self.assertEqual((code, runs), (1, [2, 1]))
        self.assertIn("worse than recorded: one/ratio", shown)

    def test_what_a_run_records_is_not_what_it_is_compared_with(self):
        code, shown, *_ = self.checked([0.9, 0.9], more=["--record"])
        self.assertEqual(code, 1)
        self.assertIn("worse than recorded: one/ratio", shown)

    def test_a_limit_of_its_own_is_checked_once_more(self):
        code, _, *runs = self.checked([0.4, 0.4], exits=(1, 0))
        self.assertEqual((code, runs), (0, [2, 1]))
        code, shown, *runs = self.checked([0.4, 0.4], exits=(1, 1))
        self.assertEqual((code, runs), (1, [2, 1]))
        self.assertIn("above a limit of its own, or failed: one", shown)

    def test_lines_of_ratios_are_read_and_the_rest_is_shown(self):
        program = "print('a table'); print('ratio a/b 0.5 0.4 0.6'); print('ratio a/c 2'); raise SystemExit(1)"
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            found, succeeded = run.run([sys.executable, "-c", program])
        self.assertEqual(found, {"a/b": [0.5, 0.4, 0.6], "a/c": [2, 2, 2]})
        self.assertFalse(succeeded)
        self.assertEqual(shown.getvalue(), "a table\n")


if __name__ == "__main__":
    unittest.main()
