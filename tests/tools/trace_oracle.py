#!/usr/bin/env python3
"""Figures of a Kineto trace, counted by a plain sweep: what `shardlens analyze` must print, to the nanosecond.

    trace_oracle.py TRACE…      prints one JSON object per trace

Independent of Shardlens: its own reader (decimal timestamps) and its own classification after docs/reference/metrics.md; it uses no code and no output
of Shardlens.
"""
import gzip
import json
import sys
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "runtime"}
NCCL_STARTS = ("nccl", "rccl", "hccl")
COMMUNICATES = ("ncclKernel", "ncclDevKernel", "ncclSymk", "mscclKernel", "one_shot_all_reduce_kernel", "two_shot_all_reduce_kernel",
                "multimem_", "cross_device_reduce_", "deep_ep::", "dpsk::ep::", "nvshmem")
C10D_RANGES = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d:")
HELPERS = {"aten::" + name for name in """
    resolve_conj resolve_neg as_strided as_strided_ view _reshape_alias _unsafe_view reshape expand expand_as t transpose transpose_
    permute select slice narrow squeeze squeeze_ unsqueeze unsqueeze_ detach detach_ alias split split_with_sizes chunk unbind view_as
    view_as_real view_as_complex unflatten flatten empty empty_like empty_strided resize_ resize_as_ set_ item _local_scalar_dense
    is_nonzero lift_fresh copy_ fill_ zero_ contiguous""".split()}
OLD_CATEGORIES = {"operator": "cpu_op"}


def nanoseconds(value):
    return int((Decimal(value) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))


class Event:
    def __init__(self, row, position):
        self.category = str(row.get("cat", "")).lower()
        self.category = OLD_CATEGORIES.get(self.category, self.category)
        self.name = str(row.get("name", ""))
        self.start = nanoseconds(row["ts"])
        self.end = self.start + nanoseconds(row.get("dur", 0))
        self.thread = (str(row.get("pid")), str(row.get("tid")))
        self.args = row.get("args") or {}
        self.position = position

    def is_range_of_c10d(self):
        return self.category == "user_annotation" and any(
            self.name.startswith(b) and not self.name[len(b):].startswith(":") for b in C10D_RANGES)

    def is_work_of_fsdp(self):
        return self.category == "user_annotation" and (
            self.name.startswith("FSDP::") or
            (self.name.startswith("FullyShardedDataParallel.") and self.name != "FullyShardedDataParallel.forward"))

    def is_operator(self):
        """An operator, not a node of autograd and not a call of c10d."""
        return (self.category == "cpu_op" and "::" in self.name and
                not self.name.startswith(("autograd::", "torch::", "c10d::", "_c10d_functional::")) and "wait_tensor" not in self.name)

    def step(self):
        digits = self.name[len("ProfilerStep#"):]
        return int(digits) if self.category == "user_annotation" and self.name.startswith("ProfilerStep#") and digits.isdigit() else None


def read(path):
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rt", encoding="utf-8", errors="replace") as file:
        data = json.load(file, parse_float=Decimal, parse_int=Decimal)
    rows = data if isinstance(data, list) else data["traceEvents"]
    events = []
    for position, row in enumerate(rows):
        if row.get("ph") == "X" and row.get("ts") is not None and Decimal(row.get("dur", 0)) >= 0:
            events.append(Event(row, position))
    distributed = {} if isinstance(data, list) else data.get("distributedInfo", {})
    return events, (int(distributed["rank"]) if "rank" in distributed else None)


class Threads:
    """Finds the ranges that contain an instant of a thread, by comparing with every range of that thread."""

    def __init__(self, ranges):
        self.by_thread = defaultdict(list)
        for each in ranges:
            self.by_thread[each.thread].append(each)

    def around(self, thread, instant):
        return [r for r in self.by_thread[thread] if r.start <= instant < r.end]


def classify_device(events):
    launches = {}
    for e in events:
        if e.category in LAUNCH and int(e.args.get("correlation", 0)) != 0:
            launches.setdefault(int(e.args["correlation"]), e)
    fsdp = Threads(e for e in events if e.is_work_of_fsdp())
    calls = Threads(e for e in events if e.is_range_of_c10d() or (e.category == "cpu_op" and e.name == "record_param_comms"))
    out = []
    for e in events:
        if e.category not in DEVICE:
            continue
        launch = launches.get(int(e.args.get("correlation", 0)))
        under_fsdp = fsdp.around(launch.thread, launch.start) if launch else []
        if e.category == "kernel":
            communicates = "Collective name" in e.args or e.name.startswith(NCCL_STARTS) or any(c in e.name for c in COMMUNICATES)
            kind = "comm" if communicates else "copy" if under_fsdp else "compute"
        else:
            peer = e.name.startswith(("Memcpy PtoP", "MemcpyPtoP")) and launch
            gathers = any(r.name == "FSDP::all_gather" or r.name.startswith("FSDP::all_gather (") for r in under_fsdp)
            kind = "comm" if peer and (gathers or calls.around(launch.thread, launch.start)) else "copy"
        out.append((kind, e, launch))
    return out


def contained(events):
    """Pairs (event, those that contain its start on its thread)."""
    by_thread = defaultdict(list)
    for e in events:
        by_thread[e.thread].append(e)
    for thread in by_thread.values():
        thread.sort(key=lambda e: (e.start, e.start - e.end, e.position))
        active = []
        for e in thread:
            active = [a for a in active if a.end > e.start]
            yield e, list(active)
            active.append(e)


def classify_host(events):
    nested = [e for e in events if e.category in ("cpu_op", "user_annotation", "communication")]
    out, candidates, not_leaf = [], [], set()
    for e in nested:
        if e.category == "communication" or e.is_range_of_c10d():
            out.append(("comm", e, None))
    for e, around in contained(nested):
        if not e.is_operator() or any(a.category == "communication" or a.is_range_of_c10d() for a in around):
            continue
        copies = e.name.startswith("fsdp::") or any(a.is_work_of_fsdp() or (a.category == "cpu_op" and a.name.startswith("fsdp::"))
                                                    for a in around)
        candidates.append((e, "copy" if copies else "compute"))
        if e.name not in HELPERS:
            not_leaf.update(id(a) for a in around if a.category == "cpu_op")
    out += [(kind, e, None) for e, kind in candidates if id(e) not in not_leaf]
    return out


def windows_of(events, classified, device):
    """The rank's windows, and (step, window) of each step."""
    marks = sorted(((e.start, e.end, e.step()) for e in events if e.step() is not None))
    if not device:
        if marks:
            return [(s, e) for s, e, _ in marks], [(number, (s, e)) for s, e, number in marks]
        operators = [e for e in events if e.category == "cpu_op"] or [e for _, e, _ in classified]
        return [(min(e.start for e in operators), max(e.end for e in operators))] if operators else [], []
    hull = [(min(e.start for _, e, _ in classified), max(e.end for _, e, _ in classified))]
    steps = []
    for start, end, number in marks:
        own = [e for _, e, launch in classified if launch and start <= launch.start < end]
        if own:
            steps.append([number, min(e.start for e in own), max(e.end for e in own)])
    for this, following in zip(steps, steps[1:]):
        this[2] = max(this[1], following[1])
    return hull, [(number, (start, end)) for number, start, end in steps]


def sweep(windows, classified):
    """Goes through all instants at which an event or a window begins or ends, in order."""
    changes = []
    for start, end in windows:
        if end > start:
            changes += [(start, "window", 1), (end, "window", -1)]
    for kind, e, _ in classified:
        if e.end > e.start:
            changes += [(e.start, kind, 1), (e.end, kind, -1)]
    changes.sort(key=lambda c: c[0])
    open_ = dict(window=0, compute=0, comm=0, copy=0)
    f = dict(span_ns=0, compute_ns=0, comm_ns=0, overlap_ns=0, exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=0)
    before = None
    for instant, what, by in changes:
        if open_["window"]:
            length = instant - before
            compute, comm, copy = open_["compute"] > 0, open_["comm"] > 0, open_["copy"] > 0
            f["span_ns"] += length
            f["compute_ns"] += length * compute
            f["comm_ns"] += length * comm
            f["overlap_ns"] += length * (compute and comm)
            f["exposed_comm_ns"] += length * (comm and not compute)
            f["exposed_copy_ns"] += length * (copy and not compute and not comm)
            f["idle_ns"] += length * (not compute and not comm and not copy)
        open_[what] += by
        before = instant
    return f


def figures(path):
    events, rank = read(path)
    device = any(e.category in DEVICE for e in events)
    classified = classify_device(events) if device else classify_host(events)
    windows, steps = windows_of(events, classified, device)
    out = {"rank": rank, **sweep(windows, classified)}
    out["steps"] = [{"step": number, **sweep([window], classified)} for number, window in steps]
    return out


if __name__ == "__main__":
    for trace in sys.argv[1:]:
        print(json.dumps({"trace": trace, **figures(trace)}))
