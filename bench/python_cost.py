#!/usr/bin/env python3
"""Measures what the Python package costs: its import, and a call beyond the program itself and the parsing of its JSON. Medians, measured alternately.

    python_cost.py --program build/release/bin/shardlens [--repeat 50]

Exit code 1 if `import shardlens` takes more than 1.5 times as long as Python with json and subprocess, or a call more than 30 ms.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import ratios

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "tests" / "data" / "pytorch_traces" / "fsdp2-default"


def timed(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def measure(calls, repeat):
    """Milliseconds of each call by name, one for each turn; all are called once before, then alternately."""
    times = {name: [] for name in calls}
    for turn in range(repeat + 1):
        for name, call in calls.items():
            took = timed(call)
            if turn:
                times[name].append(took)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=50)
    options = parser.parse_args()
    program = str(options.program.resolve())
    os.environ |= {"SHARDLENS_PROGRAM": program, "PYTHONPATH": str(ROOT / "python")}
    sys.path.insert(0, str(ROOT / "python"))
    import shardlens

    def python(code):
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    def native():
        json.loads(subprocess.run([program, "analyze", TRACES, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout)

    times = measure({
        "import json, subprocess": python("import json, subprocess"),
        "import shardlens": python("import shardlens"),
        "analyze --json, parsed": native,
        "shardlens.open(…).analysis": lambda: shardlens.open(TRACES).analysis,
        "shardlens --version": lambda: subprocess.run([program, "--version"], check=True, capture_output=True),
        "python -m shardlens --version": lambda: subprocess.run([sys.executable, "-m", "shardlens", "--version"], check=True, capture_output=True),
    }, options.repeat)
    found = {name: statistics.median(values) for name, values in times.items()}
    for name, value in found.items():
        print(f"{name:32}{value:8.2f} ms")
    share = found["import shardlens"] / found["import json, subprocess"]
    call = found["shardlens.open(…).analysis"] - found["analyze --json, parsed"]
    start = found["python -m shardlens --version"] - found["shardlens --version"]
    print(f"import: {share:.2f} times json and subprocess; a call: {call:+.2f} ms; the command through Python: {start:+.2f} ms")
    ratios.report("python/import", ratios.by_round(times["import shardlens"], times["import json, subprocess"]))
    ratios.report("python/call", ratios.by_round(times["shardlens.open(…).analysis"], times["analyze --json, parsed"]))
    return 0 if share <= 1.5 and call <= 30 else 1


if __name__ == "__main__":
    sys.exit(main())
