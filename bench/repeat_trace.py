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
MARK = re.compile(r'"@@([tin])([^"]*)@@"')  # what differs between repetitions, in the text of an event: time, identifier, number of a step
MORE = "@@more@@"


def marked(event):
    """The event with a mark in place of each value that differs between repetitions."""
    out = {**event, "ts": f"@@t{event['ts']!r}@@"}
    if isinstance(out.get("id"), int):
        out["id"] = f"@@i{out['id']}@@"
    if step := STEP.fullmatch(out.get("name", "")):
        out["name"] = f"@@n{step[1]}@@"
    if "args" in out:
        out["args"] = {key: f"@@i{value}@@" if key in IDS and isinstance(value, int) and value >= 0 else value for key, value in out["args"].items()}
    return out


def pieces(text):
    """Texts between the marks, alternating with (kind, value)."""
    parts = MARK.split(text)
    return [parts[i] if i % 3 == 0 else (parts[i], json.loads(parts[i + 1])) for i in range(len(parts)) if i % 3 != 2]


def repetition(parts, number, period, ids, steps):
    out = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
        elif part[0] == "t":
            out.append(repr(round(part[1] + number * period, 3)))
        elif part[0] == "i":
            out.append(str(part[1] + number * ids))
        else:
            out.append(f'"ProfilerStep#{part[1] + number * steps}"')
    return "".join(out)


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
    # Events are written one repetition at a time: millions of them do not fit into memory as objects.
    trace["traceEvents"].append(MORE)
    head, tail = json.dumps(trace, indent=1).split(f',\n  "{MORE}"')
    listed = json.dumps({"": [marked(event) for event in events]}, indent=1)
    parts = pieces(listed[listed.index("[\n") + 2:listed.rindex("\n ]")])
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(head)
        for number in range(1, options.times):
            file.write(",\n" + repetition(parts, number, period, ids, steps))
        file.write(tail)


if __name__ == "__main__":
    main()
