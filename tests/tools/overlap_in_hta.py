#!/usr/bin/env python3
"""Prints what Holistic Trace Analysis finds in a directory with one device trace: overlap in percent, and idle, compute and other time in µs.

    overlap_in_hta.py DIR

Exit 77 (CTest: skipped) where HolisticTraceAnalysis is not installed.
"""
import contextlib
import io
import logging
import sys
import warnings

try:
    from hta.trace_analysis import TraceAnalysis
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main():
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        analysis = TraceAnalysis(trace_dir=sys.argv[1])
        overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
        time = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    print(f"{overlap['comp_comm_overlap_pctg']:.2f} {time['idle_time(us)']:.0f} {time['compute_time(us)']:.0f} {time['non_compute_time(us)']:.0f}")


if __name__ == "__main__":
    main()
