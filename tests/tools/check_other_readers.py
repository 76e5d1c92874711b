#!/usr/bin/env python3
"""Opens a simulated run, and the runs captured and recorded on a GPU, with other programs.

    check_other_readers.py --shardlens BIN

Holistic Trace Analysis has the figures that `analyze --compat hta` prints for each of them. TensorBoard's PyTorch plugin sees the same
exposed communication in the simulated run as the analyzer, and counts the ranges around the launches too. It recognizes collectives by
these ranges, whose names in recorded runs of FSDP it does not know, whoever recorded them.

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
    """Communication without compute of a trace's step as the plugin's overview has it, and the ranges around launches, in microseconds."""
    trace = json.loads(gzip.open(path).read())
    ranges = sum(event["dur"] for event in trace["traceEvents"] if event["name"].startswith("nccl:"))
    run = RunProfileData.from_json("worker", "span", trace)
    return run.avg_costs.costs[ProfileRole.Communication] if run.has_communication else 0, ranges


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
        trace = simulated / "rank0.pt.trace.json.gz"
        done = subprocess.run([options.shardlens, "analyze", "--json", trace], capture_output=True, check=True, timeout=120)
        exposed = json.loads(done.stdout)["ranks"][0]["exposed_comm_ns"] / 1000
        seen, ranges = by_plugin(trace)
        print(f"exposed communication: {seen:.3f} us in the plugin, {exposed:.3f} us here, and {ranges:.3f} us in ranges around launches")
        sys.exit(not exposed <= seen <= exposed + ranges)


if __name__ == "__main__":
    main()
