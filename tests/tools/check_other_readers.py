#!/usr/bin/env python3
"""Opens a simulated run, and the runs captured and recorded on a GPU, with other programs.

    check_other_readers.py --shardlens BIN

Holistic Trace Analysis has the figures that `analyze --compat hta` prints for each of them. TensorBoard's PyTorch plugin sees the exposed
communication that the analyzer sees: in the simulated run as it is, and in the captured one as `convert --compat tensorboard` writes it,
because it recognizes collectives only by ranges around their launches, of five names. It counts these ranges as communication too, and takes
time in which something is copied for copies. The recorded run is of one rank and has no communication, which both say.

Exit 0: equal, 1: differences are printed, 77 (CTest: skipped): one of them is not installed for $SHARDLENS_TEST_PYTHON.
"""
import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import check_hta_compat  # noqa: F401 (runs this program again with $SHARDLENS_TEST_PYTHON, or skips it, as itself)

try:
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.event_parser import ProfileRole
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]


def by_plugin(path):
    """Communication of all steps without compute as the plugin's overview has it, all ranges around launches, and all copies, in microseconds."""
    trace = json.loads(gzip.open(path).read())
    ranges = sum(event["dur"] for event in trace["traceEvents"] if event["name"].startswith("nccl:"))
    copies = sum(event["dur"] for event in trace["traceEvents"] if event.get("cat") in ("gpu_memcpy", "gpu_memset"))
    run = RunProfileData.from_json("worker", "span", trace)
    return sum(step.costs[ProfileRole.Communication] for step in run.steps_costs) if run.has_communication else 0, ranges, copies


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardlens", required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        simulated = Path(directory) / "simulated"
        subprocess.run([options.shardlens, "simulate", "--model", ROOT / "tests/data/llama-tiny", "--hardware", "8xH100", "--out", simulated], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        checked = subprocess.run([sys.executable, ROOT / "tests/tools/check_hta_compat.py", "--shardlens", options.shardlens, simulated,
                                  ROOT / "traces/llama-h200", ROOT / "traces/fsdp2-h200"], capture_output=True, text=True, check=False, timeout=300)
        print(checked.stdout + checked.stderr)
        if checked.returncode or "10 traces compared, 0 that HTA cannot open, 0 differences" not in checked.stdout:
            sys.exit(1)
        wrong = compare(options.shardlens, simulated / "rank0.pt.trace.json.gz")
        for run in ("llama-h200", "fsdp2-h200"):
            out = Path(directory) / run
            subprocess.run([options.shardlens, "convert", ROOT / "traces" / run, "--compat", "tensorboard", "--out", out], check=True,
                           capture_output=True, timeout=120)
            wrong |= compare(options.shardlens, out / "rank0.pt.trace.json.gz")
        sys.exit(wrong)


def compare(shardlens, trace):
    """Whether the plugin sees less exposed communication than there is without copies, or more than with the ranges."""
    done = subprocess.run([shardlens, "analyze", "--json", trace], capture_output=True, check=True, timeout=120)
    exposed = json.loads(done.stdout)["ranks"][0]["exposed_comm_ns"] / 1000
    seen, ranges, copies = by_plugin(trace)
    print(f"{trace.parent.name}: exposed communication: {seen:.3f} us in the plugin, {exposed:.3f} us here; {ranges:.3f} us in ranges around "
          f"launches, {copies:.3f} us of copies")
    return not exposed - copies - 1 <= seen <= exposed + ranges + 1  # the plugin's sums are rounded


if __name__ == "__main__":
    main()
