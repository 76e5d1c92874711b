#!/usr/bin/env python3
"""Per-unit figures of a PyTorch FSDP trace of CPU ranks, computed independently of Shardlens, by another method.

    unit_oracle.py TRACE.json[.gz]      prints one JSON object, times in integer nanoseconds

No code and no output of Shardlens: decimal timestamps, plain loops over all events. For each unit, all steps:
calls of c10d within its ranges, by kind, with their messages in bytes and the time that Gloo's thread took for them (the n-th
range of Gloo is the n-th call), and the compute of the unit: leaf operators whose start is in its forward (pre_forward to
post_forward) or backward (pre_backward to post_backward), innermost unit first. For DDP: each bucket's all-reduces, their
time, and the part of it in which no leaf operator ran and no earlier collective was running.
"""
import collections
import decimal
import gzip
import json
import re
import sys

HELPERS = set("""resolve_conj resolve_neg as_strided as_strided_ view _reshape_alias _unsafe_view reshape expand expand_as t transpose
transpose_ permute select slice narrow squeeze squeeze_ unsqueeze unsqueeze_ detach detach_ alias split split_with_sizes chunk unbind
view_as view_as_real view_as_complex unflatten flatten empty empty_like empty_strided resize_ resize_as_ set_ item
_local_scalar_dense is_nonzero lift_fresh copy_ fill_ zero_ contiguous""".split())
SIZES = {"float": 4, "c10::BFloat16": 2}


def load(path):
    text = (gzip.open if path.endswith(".gz") else open)(path, "rt").read()
    trace = json.loads(text, parse_float=decimal.Decimal)
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X" and isinstance(e.get("tid"), int)]
    for e in events:
        e["start"] = int(decimal.Decimal(e["ts"]) * 1000)
        e["end"] = e["start"] + int(decimal.Decimal(e["dur"]) * 1000)
    return trace, events


def numel(dims):
    n = 1
    for d in dims:
        n *= d
    return n


def is_operator(e):
    name = e["name"]
    return (e.get("cat") == "cpu_op" and "::" in name and not name.startswith(("autograd::", "torch::", "c10d::", "_c10d_functional::"))
            and "wait_tensor" not in name)


def leaves(events):
    """Operators that contain no operators other than helpers, on threads that do not serve a communicator."""
    serving = [e for e in events if re.match(r"gloo:[^:]", e["name"])]
    by_thread = collections.defaultdict(list)
    for e in events:
        if is_operator(e) and not any(s["tid"] == e["tid"] and s["start"] <= e["start"] < s["end"] for s in serving):
            by_thread[e["tid"]].append(e)
    for thread in by_thread.values():
        for e in thread:
            inner = [o for o in thread if o is not e and e["start"] <= o["start"] and o["end"] <= e["end"]
                     and (o["end"] - o["start"], o["start"]) != (e["end"] - e["start"], e["start"])
                     and o["name"].split("::")[1] not in HELPERS]
            if not inner:
                yield e


def union(intervals):
    total, last = 0, None
    for a, b in sorted(intervals):
        if last is None or a > last:
            total, last = total + b - a, b
        elif b > last:
            total, last = total + b - last, b
    return total


def fsdp2_windows(events):
    """(start, end, unit, phase) per forward and backward of a unit, of one pass after the other."""
    name = re.compile(r"FSDP::(pre_forward|post_forward|pre_backward|post_backward_reduce)(?: \((.*)\))?$")
    open_at, out = {}, []
    for e in sorted((e for e in events if e.get("cat") == "user_annotation"), key=lambda e: e["start"]):
        found = name.match(e["name"])
        if not found:
            continue
        what, unit = found.group(1), found.group(2) or ""
        if what.startswith("pre_"):
            open_at[unit, what[4:]] = e["start"]
        else:
            phase = "forward" if what == "post_forward" else "backward"
            if (unit, phase) in open_at:  # a root without a hook before its backward
                out.append((open_at.pop((unit, phase)), e["end"], unit, phase))
    return out


def fsdp1_windows(events):
    """The same for FSDP1, whose ranges have no names: one root with units in a chain, as in the recordings. Their forwards
    are in order, their backwards in reverse order, the root's around all."""
    prefix = "FullyShardedDataParallel."
    ranges = sorted((e for e in events if e["name"].startswith(prefix)), key=lambda e: e["start"])
    of = lambda what, within: [r for r in ranges if r["name"] == prefix + what and within["start"] <= r["start"] < within["end"]]
    out = []
    for step in (e for e in events if e["name"].startswith("ProfilerStep#")):
        forwards, pre, post = of("forward", step), of("_pre_backward_hook", step), of("_post_backward_hook", step)
        n = len(forwards) - 1
        names = [""] + [f"unit {i + 1}" for i in range(n)]
        for name, forward in zip(names, forwards):
            inner = [r for r in ranges if forward["start"] <= r["start"] and r["end"] <= forward["end"]]
            starts = [r["start"] for r in inner if r["name"] == prefix + "_pre_forward"]
            ends = [r["end"] for r in inner if r["name"] == prefix + "_post_forward"]
            out.append((min(starts), max(ends), name, "forward"))
        for begin, name in zip(pre, [""] + names[:0:-1]):
            end = post[-1] if name == "" else post[n - int(name.split()[1])]
            out.append((begin["start"], end["end"], name, "backward"))
    return out


def compute_by_unit(events, windows, copies, steps):
    """Length of the union of leaf operators, by unit and phase; those within ranges of `copies` are FSDP's own."""
    compute = collections.defaultdict(list)
    for e in leaves(events):
        if not any(s["start"] <= e["start"] < s["end"] for s in steps) or e["name"].startswith("fsdp::"):
            continue
        if any(r["tid"] == e["tid"] and r["start"] <= e["start"] < r["end"] for r in copies):
            continue
        around = [w for w in windows if w[0] <= e["start"] < w[1]]
        if around:
            _, _, unit, phase = max(around, key=lambda w: w[0])
            compute[unit, phase].append((e["start"], e["end"]))
    return {key: union(intervals) for key, intervals in compute.items()}


def fsdp1(events):
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    copies = [e for e in events if e["name"].startswith("FullyShardedDataParallel._")]
    units = collections.defaultdict(dict)
    for (unit, phase), length in compute_by_unit(events, fsdp1_windows(events), copies, steps).items():
        units[unit][f"compute_{phase}_ns"] = length
    print(json.dumps(units, sort_keys=True, indent=1))


def ddp(events):
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    calls = sorted((e for e in events if e["name"] == "c10d::allreduce_"), key=lambda e: e["start"])
    running = sorted((e for e in events if e["name"].startswith("gloo:")), key=lambda e: e["start"])
    reductions = [e for e in running if e["name"] == "gloo:all_reduce"]
    assert len(calls) == len(reductions) and len(calls) % len(steps) == 0
    compute = [(e["start"], e["end"]) for e in leaves(events)]
    instants = sorted({t for e in running for t in (e["start"], e["end"])} | {t for interval in compute for t in interval})
    buckets = collections.defaultdict(lambda: collections.defaultdict(int))
    for n, (call, reduction) in enumerate(zip(calls, reductions)):
        bucket = buckets[f"bucket {n % (len(calls) // len(steps))}"]
        bucket["count"] += 1
        bucket["bytes"] += numel(call["args"]["Input Dims"][0][0]) * 4
        bucket["busy_ns"] += reduction["end"] - reduction["start"]
        for a, b in zip(instants, instants[1:]):
            now = [e for e in running if e["start"] <= a < e["end"]]
            if now and now[0] is reduction and not any(start <= a < end for start, end in compute):
                bucket["exposed_ns"] += b - a
    print(json.dumps(buckets, sort_keys=True, indent=1))


def main():
    trace, events = load(sys.argv[1])
    if any(e["name"].startswith("FullyShardedDataParallel.") for e in events):
        fsdp1(events)
        return
    if any(e["name"] == "DistributedDataParallel.forward" for e in events):
        ddp(events)
        return
    ranges = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("FSDP::")]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    windows = fsdp2_windows(events)
    units = collections.defaultdict(lambda: collections.defaultdict(int))
    calls = sorted((e for e in events if re.match(r"c10d::", e["name"])), key=lambda e: e["start"])
    running = sorted((e for e in events if re.match(r"gloo:[^:]", e["name"])), key=lambda e: e["start"])
    for i, e in enumerate(calls):
        if not any(s["start"] <= e["start"] < s["end"] for s in steps):
            continue
        around = [r for r in ranges if r["tid"] == e["tid"] and r["start"] <= e["start"] and e["end"] <= r["end"]
                  and ("::all_gather" in r["name"] or "post_backward_reduce" in r["name"])]
        if not around:
            continue
        inner = min(around, key=lambda r: r["end"] - r["start"])
        found = re.search(r" \((.*)\)$", inner["name"])
        unit = found.group(1) if found else ""
        backward = any(r["tid"] == e["tid"] and r["start"] <= e["start"] < r["end"] and ("pre_backward" in r["name"] or "backward_prefetch" in r["name"])
                       for r in ranges)
        kind = ("reduce_scatter" if "reduce_scatter" in e["name"] else "all_reduce" if "allreduce" in e["name"]
                else "all_gather_backward" if backward else "all_gather_forward")
        dims, types = e["args"]["Input Dims"], e["args"]["Input type"]
        units[unit][kind + "_count"] += 1
        size = numel(dims[0][0]) if kind == "all_reduce" else max(numel(dims[0]), numel(dims[1]))
        units[unit][kind + "_bytes"] += size * SIZES.get(types[0], 4)
        if len(calls) == len(running):
            units[unit][kind + "_busy_ns"] += running[i]["end"] - running[i]["start"]
    for (unit, phase), length in compute_by_unit(events, windows, ranges, steps).items():
        units[unit][f"compute_{phase}_ns"] = length
    print(json.dumps(units, sort_keys=True, indent=1))


if __name__ == "__main__":
    main()
