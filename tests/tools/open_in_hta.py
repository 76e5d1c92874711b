#!/usr/bin/env python3
"""Opens a capture directory in Holistic Trace Analysis and prints what it finds: `rank=events/steps/communication …`.

    open_in_hta.py DIR

Exit 77 (CTest: skipped) where HolisticTraceAnalysis is not installed.
"""
import contextlib
import io
import shutil
import sys
import tempfile
from pathlib import Path

try:
    from hta.common.trace import Trace
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main():
    source = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        # HTA reads every JSON file of a directory as a trace.
        for trace in source.glob("rank*.pt.trace.json.gz"):
            shutil.copy(trace, directory)
        traces = Trace(trace_dir=directory)
        traces.parse_traces()
        names = traces.symbol_table.sym_table
    seen = []
    for rank, frame in sorted(traces.traces.items()):
        category = frame["cat"].map(lambda c: names[c])
        step = frame["name"].map(lambda n: names[n]).str.startswith("ProfilerStep")
        seen.append(f"{rank}={len(frame)}/{int(step.sum())}/{int((category == 'communication').sum())}")
    print(" ".join(seen))


if __name__ == "__main__":
    main()
