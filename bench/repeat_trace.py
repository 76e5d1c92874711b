#!/usr/bin/env python3
"""Writes a recorded trace of PyTorch's profiler with its events repeated at later times, for measuring what a longer trace of the same program costs.

    repeat_trace.py --times 4 --out rank0.pt.trace.json tests/data/pytorch_traces/fsdp2-default/rank0.pt.trace.json.gz

The n-th repetition begins when the one before has ended; its identifiers and the numbers of its steps follow those of the one before.
"""
import argparse
import gzip
import json
import re

IDS = ("correlation", "External id", "Sequence number", "Ev Idx")
STEP = re.compile(r"ProfilerStep#(\d+)")


def repeated(event, number, period, ids, steps):
    """The event in repetition `number`."""
    out = {**event, "ts": round(event["ts"] + number * period, 3)}
    if isinstance(out.get("id"), int):
        out["id"] += number * ids
    if step := STEP.fullmatch(out.get("name", "")):
        out["name"] = f"ProfilerStep#{int(step[1]) + number * steps}"
    if "args" in out:
        out["args"] = {key: value + number * ids if key in IDS and isinstance(value, int) and value >= 0 else value
                       for key, value in out["args"].items()}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    opened = gzip.open if options.trace.endswith(".gz") else open
    with opened(options.trace, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    events = [event for event in trace["traceEvents"] if event.get("ph") != "M" and "ts" in event]
    begin = min(event["ts"] for event in events)
    period = round(max(event["ts"] + event.get("dur", 0) for event in events) - begin) + 100
    ids = 1 + max([value for event in events for key, value in event.get("args", {}).items() if key in IDS and isinstance(value, int)]
                  + [event["id"] for event in events if isinstance(event.get("id"), int)], default=0)
    steps = sum(1 for event in events if event.get("cat") == "user_annotation" and STEP.fullmatch(event.get("name", "")))
    for number in range(1, options.times):
        trace["traceEvents"] += [repeated(event, number, period, ids, steps) for event in events]
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(trace, file, indent=1)


if __name__ == "__main__":
    main()
