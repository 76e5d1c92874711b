#!/usr/bin/env python3
"""Compares `shardlens analyze --compat hta` with Holistic Trace Analysis itself, to the two decimals that it prints.

    check_hta_compat.py --shardlens BIN PATH…     every trace below the paths that HTA can open

Exit 0: equal, 1: differences are printed, 77 (CTest: skipped): no trace, or HolisticTraceAnalysis is not installed.
Set SHARDLENS_TEST_PYTHON to a Python interpreter that has it.
"""
import argparse
import contextlib
import io
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

python = os.environ.get("SHARDLENS_TEST_PYTHON")
if python and os.path.realpath(python) != os.path.realpath(sys.executable) and "SHARDLENS_HTA_CHILD" not in os.environ:
    os.environ["SHARDLENS_HTA_CHILD"] = "1"
    os.execv(python, [python, *sys.argv])
try:
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def by_hta(path):
    """The row of HTA's two tables for one trace, or HTA's error as text."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        shutil.copy(path, directory)
        try:
            analysis = TraceAnalysis(trace_dir=directory)
            row = analysis.get_comm_comp_overlap(visualize=False).iloc[0].to_dict()
            row.update(analysis.get_temporal_breakdown(visualize=False).iloc[0].to_dict())
            return row
        except BaseException as error:  # HTA raises many kinds of errors
            return f"{type(error).__name__}: {error}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardlens", required=True)
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    wrong, compared, refused = [], 0, 0
    for file in sorted(f for path in options.paths for f in path.rglob("*.json.gz")):
        expected = by_hta(file)
        if isinstance(expected, str):
            refused += 1
            print(f"HTA cannot open {file.name}: {expected[:80]}")
            continue
        done = subprocess.run([options.shardlens, "analyze", "--compat", "hta", "--json", str(file)], capture_output=True, text=True, timeout=120)
        found = json.loads(done.stdout)["ranks"][0]
        compared += 1
        for key, value in expected.items():
            absent = isinstance(value, float) and math.isnan(value)
            if key == "rank" or (absent and found[key] is None):
                continue
            if absent or found[key] is None or abs(found[key] - value) > 1e-6:
                wrong.append(f"{file.name}: {key} is {value} in HTA, {found[key]} here")
    print(*wrong, sep="\n")
    print(f"{compared} traces compared, {refused} that HTA cannot open, {len(wrong)} differences")
    sys.exit(77 if compared == 0 else 1 if wrong else 0)


if __name__ == "__main__":
    main()
