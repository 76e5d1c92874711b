#!/usr/bin/env python3
"""Tests scripts/gpu_check itself, without a GPU and without built programs.

    test_gpu_check.py
"""
import argparse
import contextlib
import gzip
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/gpu_check"

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
spec = importlib.util.spec_from_loader("gpu_check", loader)
gpu_check = importlib.util.module_from_spec(spec)
loader.exec_module(gpu_check)


def event(cat, name, ts, dur=1, **args):
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def step_events(steps, kernel):
    """Steps of 100 us in each of which the host launches a kernel, without a wait."""
    events = []
    for i in range(steps):
        at = 100 * i
        events += [event("user_annotation", f"ProfilerStep#{i}", at, 100), event("cuda_runtime", "cudaLaunchKernel", at + 10, correlation=i),
                   event("kernel", kernel, at + 20, 30, correlation=i, **{"est. achieved occupancy %": 50}),
                   event("gpu_user_annotation", f"ProfilerStep#{i}", at + 20, 60)]
    return events


class OnAGpu(gpu_check.Check):
    """The checks as on a machine with two GPUs whose programs do what is expected."""

    def __init__(self, out, kernel="multi_tensor_apply chunk_cat_kernel"):
        with mock.patch.object(gpu_check, "gpu_count", return_value=2):
            super().__init__(argparse.Namespace(bin=out, out=out, device="cuda"))
        self.kernel = kernel

    def capture(self, name, *flags, device=None, model="llama-tiny", tokens=None):
        out = self.out / name
        out.mkdir(parents=True, exist_ok=True)
        steps = flags[flags.index("--steps") + 1] if "--steps" in flags else 10
        line = json.dumps({"loss": 1.0, "step_ms": 10.0, "unsharded_bytes": 0, "allocated_bytes": 3 * 5000})
        (out / "metrics.jsonl").write_text(f"{line}\n" * steps)
        recorded = steps - (flags[flags.index("--warmup") + 1] if "--warmup" in flags else 0)
        with gzip.open(out / "rank0.pt.trace.json.gz", "wt") as file:
            json.dump({"traceEvents": step_events(recorded, self.kernel)}, file)
        return out

    def shardlens(self, *words, accept=(0,)):
        if words[0] == "plan":
            return json.dumps({"units": [{"shard_bytes": 5000}]})
        if words[0] == "check":
            return json.dumps({"notes": []})
        exposed = 2 if "frozen" in str(words[1]) else 1
        reductions = {"count": 3, "exposed_ns": exposed}
        return json.dumps({"ranks": [{"collectives": {"reduce_scatter": reductions}, "units": [{"fqn": "", "compute_ns": 5}]}], "diagnostics": []})

    def program(self, name, *arguments):
        return 0, {"kernel_times": {"recorded": 1000, "kernels_ms": 1.0, "events_ms": 1.0}}[name]

    def run(self, command, timeout=gpu_check.TIMEOUT):
        return subprocess.CompletedProcess(command, 0, json.dumps({"step_ms": [10.0] * 14}), "")


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, text):
        """A program in the place of a built one."""
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def run_script(self, *arguments):
        command = [sys.executable, str(SCRIPT), "--bin", str(self.folder), "--out", str(self.folder / "out"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_says_what_is_missing(self):
        done = self.run_script()
        self.assertEqual(done.returncode, 4)
        self.assertIn("shardlens does not exist; run scripts/setup first", done.stderr)

    def test_without_a_gpu_says_so_and_succeeds(self):
        self.program("shardlens", "exit 1\n")
        output = io.StringIO()
        with (mock.patch.object(gpu_check, "gpu_count", return_value=0), contextlib.redirect_stdout(output),
              mock.patch.object(sys, "argv", ["gpu_check", "--bin", str(self.folder), "--out", str(self.folder / "out")])):
            self.assertEqual(gpu_check.main(), 0)
        self.assertIn("No GPU: this machine has no NVIDIA driver, so nothing was checked", output.getvalue())
        self.assertFalse((self.folder / "out").exists())

    def test_a_failed_check_does_not_end_the_others(self):
        self.program("shardlens", "echo told; echo broken >&2; exit 9\n")
        done = self.run_script("--device", "cpu")
        self.assertEqual(done.returncode, 1, done.stderr)
        result = json.loads((self.folder / "out/gpu_check.json").read_text())
        self.assertEqual([row["check"] for row in result["checks"]], gpu_check.CHECKS)
        verdicts = {row["check"]: row["verdict"] for row in result["checks"]}
        self.assertEqual(verdicts["order"], "FAILED")
        self.assertEqual(verdicts["waits"], "skipped")  # the reason: needs a GPU
        self.assertEqual(result["failed"], [name for name in gpu_check.CHECKS if verdicts[name] == "FAILED"])
        log = (self.folder / "out/logs/order-1.log").read_text()
        for text in ("--backend emulated", "exit code 9", "told", "broken"):
            self.assertIn(text, log)
        self.assertTrue((self.folder / "out/versions.json").exists())

    def test_every_check_is_run_and_described(self):
        methods = {name for name, each in vars(gpu_check.Check).items() if callable(each) and (each.__doc__ or "").endswith(".")}
        helpers = {"run", "program"}
        self.assertEqual(methods - helpers, set(gpu_check.CHECKS))

    def test_what_only_a_gpu_can_answer_is_judged(self):
        checks = ("kernel_times", "packing", "recorder", "waits", "all_gpus", "trace", "unsharded", "views", "overhead")
        for name in checks:
            with self.subTest(name):
                self.assertIsInstance(getattr(OnAGpu(self.folder), name)(), str)
        with mock.patch.object(gpu_check.importlib.util, "find_spec", return_value=True):
            self.assertIn("1.000 times", OnAGpu(self.folder).pytorch())
        with mock.patch.object(gpu_check.shutil, "which", return_value="/bin/compute-sanitizer"):
            self.assertEqual(OnAGpu(self.folder).sanitizer(), "no error")
        for name in ("packing", "recorder"):  # no such kernel is in the trace
            with self.subTest(name), self.assertRaises(gpu_check.Failure):
                getattr(OnAGpu(self.folder, kernel="gemm"), name)()

    def test_what_it_looks_for_in_messages_is_written_somewhere(self):
        sources = "".join(path.read_text(encoding="utf-8") for folder in ("core", "profiler") for path in (ROOT / folder).rglob("*.[ch]*"))
        for text in ("not kept", "lost", "device records", "CUPTI", "without times", "did not have", "requested by Shardlens", "left out: the profiler",
                     '"<none>"'):
            self.assertIn(text, sources)
            self.assertIn(text, SCRIPT.read_text(encoding="utf-8"))

    def test_finds_the_waits_of_each_step(self):
        step = [event("user_annotation", "ProfilerStep#3", 100, 50), event("user_annotation", "ProfilerStep#4", 150, 50),
                event("gpu_user_annotation", "ProfilerStep#3", 110, 80)]
        waits = [event("cuda_sync", "Stream Synchronize", 120, cuda_sync_kind="Stream Sync"),
                 event("cuda_sync", "Context Synchronize", 199, cuda_sync_kind="Context Sync"),
                 event("cuda_runtime", "cudaMemcpy", 160),
                 event("cuda_sync", "Event Synchronize", 220, cuda_sync_kind="Event Sync")]  # after the steps
        others = [event("cuda_sync", "Stream Wait Event", 121, cuda_sync_kind="Stream Wait Event"), event("cuda_runtime", "cudaMemcpyAsync", 122),
                  event("cuda_runtime", "cudaEventQuery", 123), event("kernel", "chunk_cat", 124)]
        self.assertEqual(gpu_check.host_waits_by_step(step + waits + others), [["Stream Synchronize"], ["Context Synchronize", "cudaMemcpy"]])
        self.assertEqual(gpu_check.host_waits_by_step(step + others), [[], []])


if __name__ == "__main__":
    unittest.main()
