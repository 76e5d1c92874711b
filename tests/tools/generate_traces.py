#!/usr/bin/env python3
"""Generates traces of sharded training whose figures are known, because the traces are made from them.

    generate_traces.py SEED DIR      writes DIR/rank<r>.json and prints the known figures as JSON

A run is a list of segments, each with a length and a set of activities: compute, comm, copy, or none. The known figures are sums of
lengths. Consecutive segments with one activity are cut into kernels (or operators): several in a row, some of which overlap the next one
in their stream, as with programmatic dependent launch, so that the figures cannot be read from single events.
Ranks share the segments, and a collective ends on all of them at once; some ranks start it late. Each rank has its own clock.
"""
import json
import random
import sys
from decimal import Decimal
from pathlib import Path

DIALECTS = ("fsdp1", "fsdp2", "shardlens")
TIMES = ("integer", "relative", "epoch")
EPOCH = 1_712_195_495_519_689_047
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
C10D_NAME = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base", "all_reduce": "allreduce"}
NCCL_NAME = {"all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
             "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
             "all_reduce": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"}
COPY_RANGE = {"fsdp1": "FullyShardedDataParallel._pre_forward", "fsdp2": "FSDP::all_gather_copy_out (layers.{})",
              "shardlens": "FSDP::post_backward_reduce (layers.{})"}


class Segment:
    def __init__(self, start, length, active):
        self.start, self.length, self.active = start, length, frozenset(active)
        self.end = start + length


def make_step(rng, start, grid, layers):
    """Segments of one step; the first and the last compute, so that device windows begin and end with the segments."""
    segments = []
    for _ in range(layers * 4):
        active = {kind for kind, share in (("compute", 0.6), ("comm", 0.5), ("copy", 0.2)) if rng.random() < share}
        segments.append(active)
    segments[0] |= {"compute"}
    segments[-1] |= {"compute"}
    out = []
    for active in segments:
        length = rng.randint(40, 400) * grid
        out.append(Segment(start, length, active))
        start += length
    return out


def runs(segments, kind):
    """Longest series of consecutive segments with activity `kind`."""
    run = []
    for segment in segments:
        if kind in segment.active:
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def cut(rng, start, end, grid):
    """[start, end) as consecutive events; some reach into the next one."""
    if rng.random() < 0.4 or end - start < 60 * grid:
        return [(start, end)]
    middle = start + rng.randint(20, (end - start) // grid - 20) * grid
    overlap = rng.choice([0, 0, rng.randint(1, 10)]) * grid
    return [(start, middle + overlap), (middle, end)]


def truth_of(segments, late):
    """Figures computed from the segments; `late`: segments in which this rank's comm has not begun."""
    f = dict.fromkeys(("span_ns", "compute_ns", "comm_ns", "overlap_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns"), 0)
    for s in segments:
        active = s.active - {"comm"} if id(s) in late else s.active
        f["span_ns"] += s.length
        f["compute_ns"] += s.length if "compute" in active else 0
        f["comm_ns"] += s.length if "comm" in active else 0
        f["overlap_ns"] += s.length if {"compute", "comm"} <= active else 0
        f["exposed_comm_ns"] += s.length if "comm" in active and "compute" not in active else 0
        f["exposed_copy_ns"] += s.length if active == {"copy"} else 0
        f["idle_ns"] += s.length if not active else 0
    return f


class Writer:
    """One rank's rows; times in nanoseconds, written in the format `times`."""

    def __init__(self, times, clock):
        self.times, self.clock, self.rows = times, clock, []

    def time(self, value):
        if self.times == "integer":
            return (EPOCH // 1_000_000_000 * 1_000_000_000 + value + self.clock) // 1000
        if self.times == "relative":
            return Decimal(value) / 1000
        return Decimal(EPOCH + value + self.clock) / 1000

    def add(self, cat, name, pid, tid, start, end, **args):
        length = (end - start) // 1000 if self.times == "integer" else Decimal(end - start) / 1000
        self.rows.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self.time(start), "dur": length, "args": args})

    def text(self, rank, world):
        head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
        if self.times == "relative":
            head["baseTimeNanoseconds"] = EPOCH + self.clock
        rows = ",\n".join(json.dumps(r, default=lambda d: f"@{d}@").replace('"@', "").replace('@"', "") for r in self.rows)
        return json.dumps(head)[:-1] + ', "traceEvents": [\n' + rows + "]}"


def comm_args(run, kind, rank, world, sequence):
    elements = 1024 * (1 + len(run))
    return {"Collective name": C10D_NAME[kind], "dtype": "Float", "In msg nelems": elements, "Out msg nelems": elements, "Group size": world,
            "Process Group Name": "0", "Process Group Ranks": str(list(range(world))), "Seq": sequence}


class Device:
    """Launches and kernels of one rank. A launch is `lead` before its kernel, or a little later if the previous launch is too close."""

    def __init__(self, rng, writer, dialect, grid, lead):
        self.rng, self.writer, self.dialect, self.grid, self.lead = rng, writer, dialect, grid, lead
        self.pending, self.correlation = [], 100

    def event(self, cat, name, stream, start, end, under=None, **args):
        self.pending.append((start, cat, name, stream, end, under, args))

    def flush(self):
        last = None
        for start, cat, name, stream, end, under, args in sorted(self.pending, key=lambda p: p[0]):
            called = start - self.lead if last is None else max(start - self.lead, last + 4 * self.grid)
            last = called
            self.correlation += 1
            if under:
                self.writer.add("user_annotation", under, 1, 1, called - self.grid, called + 2 * self.grid)
            self.writer.add(self.rng.choice(["cuda_runtime", "cuda_driver"]), "cudaLaunchKernel", 1, 1, called, called + self.grid,
                            correlation=self.correlation)
            self.writer.add(cat, name, 0, stream, start, end, stream=stream, correlation=self.correlation, **args)
        self.pending = []


def write_device(rng, writer, dialect, grid, steps, late, rank, world):
    device = Device(rng, writer, dialect, grid, lead=rng.randint(500, 900) * grid)
    sequence = 0
    wrap = "FullyShardedDataParallel.forward" if dialect == "fsdp1" else "Optimizer.step#AdamW.step"
    for number, segments in enumerate(steps, 3):
        host = (segments[0].start - device.lead - 2 * grid, segments[-1].end - device.lead - 2 * grid)
        writer.add("user_annotation", f"ProfilerStep#{number}", 1, 1, *host)
        writer.add("user_annotation", wrap, 1, 1, host[0], host[1])  # contains all launches, but their kernels must not count as copies
        for run in runs(segments, "compute"):
            for start, end in cut(rng, run[0].start, run[-1].end, grid):
                device.event("kernel", rng.choice(["ampere_sgemm_128x64_nn", "triton_poi_fused_0", "MemsetLikeButSync_kernel"]), 7, start, end)
        for run in runs(segments, "copy"):
            for start, end in cut(rng, run[0].start, run[-1].end, grid):
                if rng.random() < 0.5:
                    device.event("kernel", "split_with_sizes_copy_out", 9, start, end, under=COPY_RANGE[dialect].format(rng.randint(0, 3)))
                else:
                    device.event(rng.choice(["gpu_memcpy", "gpu_memset"]), "Memcpy DtoD (Device -> Device)", 9, start, end)
        for run in runs(segments, "comm"):
            begin = run[1].start if id(run[0]) in late else run[0].start
            kind = KINDS[sequence % len(KINDS)]
            device.event("kernel", NCCL_NAME[kind], 20, begin, run[-1].end, **comm_args(run, kind, rank, world, sequence))
            sequence += 1
        # None of these is busy time.
        writer.add("gpu_user_annotation", f"ProfilerStep#{number}", 0, 7, segments[0].start, segments[-1].end + 5 * grid)
        writer.add("cuda_sync", "Stream Wait Event", 0, 7, segments[1].start, segments[2].end)
        writer.add("cpu_op", "triton_poi_fused_0", 1, 1, host[0] + grid, host[0] + 2 * grid, stream=0)
    device.flush()


def write_host(rng, writer, dialect, grid, steps, late, rank, world):
    sequence = 0
    for number, segments in enumerate(steps, 3):
        writer.add("user_annotation", f"ProfilerStep#{number}", 1, 1, segments[0].start, segments[-1].end)
        for run in runs(segments, "compute"):
            for i, (start, end) in enumerate(cut(rng, run[0].start, run[-1].end, grid)):
                thread = 1 + i  # operators of two threads may overlap
                writer.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 1, thread, start, end)
                writer.add("cpu_op", "aten::linear", 1, thread, start, end)
                writer.add("cpu_op", "aten::addmm", 1, thread, start, end)
                writer.add("cpu_op", "aten::expand", 1, thread, start + grid, start + 2 * grid)
                writer.add("cpu_op", "aten::copy_", 1, thread, start + 3 * grid, start + 5 * grid)
        for run in runs(segments, "copy"):
            start, end = run[0].start, run[-1].end
            if rng.random() < 0.5:
                writer.add("user_annotation", COPY_RANGE[dialect].format(1), 1, 5, start, end)
                writer.add("cpu_op", "aten::split_with_sizes_copy", 1, 5, start, end)
            else:
                writer.add("cpu_op", "fsdp::all_gather_copy_in", 1, 5, start, end)
                writer.add("cpu_op", "aten::copy_", 1, 5, start + grid, end)
        for run in runs(segments, "comm"):
            begin = run[1].start if id(run[0]) in late else run[0].start
            kind = KINDS[sequence % len(KINDS)]
            args = comm_args(run, kind, rank, world, sequence)
            if dialect == "shardlens":
                writer.add("communication", "gloo:" + kind, 1, 1000, begin, run[-1].end, **args)
            else:
                writer.add("user_annotation", "gloo:" + kind, 1, 99, begin, run[-1].end, **args)
                writer.add("cpu_op", "aten::add_", 1, 99, begin + grid, run[-1].end - grid)  # part of the collective
            sequence += 1


def truths(steps, lates, clocks, files):
    ranks = []
    for rank, late in enumerate(lates):
        own = [truth_of(segments, late) for segments in steps]
        ranks.append({"rank": rank, "file": str(files[rank]), "clock_ns": clocks[rank], **{k: sum(s[k] for s in own) for k in own[0]},
                      "steps": [{"step": number, **figures} for number, figures in enumerate(own, 3)]})
    wait, sequence = dict.fromkeys(KINDS, 0), 0
    for segments in steps:
        for run in runs(segments, "comm"):
            begins = [run[1].start if id(run[0]) in late else run[0].start for late in lates]
            wait[KINDS[sequence % len(KINDS)]] += sum(max(begins) - b for b in begins)
            sequence += 1
    return {"ranks": ranks, "collectives": sequence, "wait_ns": wait}


def generate(seed, directory):
    rng = random.Random(seed)
    dialect, times, on_device = DIALECTS[seed % 3], TIMES[seed // 3 % 3], seed // 9 % 2 == 0
    grid = 1000 if times == "integer" else 1
    world = rng.choice([1, 2, 2, 3, 5])
    steps, start = [], 10_000 * grid
    for _ in range(rng.randint(1, 4)):
        steps.append(make_step(rng, start, grid, rng.randint(2, 6)))
        start = steps[-1][-1].end
    lates = []
    for _ in range(world):
        late = {id(run[0]) for segments in steps for run in runs(segments, "comm") if len(run) > 1 and rng.random() < 0.4}
        lates.append(late)
    # The reference is the clock in the middle; with an even number of ranks, the lower of the two.
    clocks = [rng.randint(-50, 50) * 1000 for _ in range(world)]
    middle = sorted(clocks)[(world - 1) // 2]
    clocks = [c - middle for c in clocks]
    files = [directory / f"rank{rank}.json" for rank in range(world)]
    for rank in range(world):
        writer = Writer(times, clocks[rank])
        (write_device if on_device else write_host)(random.Random(seed * 100 + rank), writer, dialect, grid, steps, lates[rank], rank, world)
        if on_device:  # not on the host: of two events of a thread with equal times, the first in the file contains the other
            rng.shuffle(writer.rows)
        files[rank].write_text(writer.text(rank, world))
    truth = truths(steps, lates, clocks, files)
    truth["shape"] = f"{dialect}, {times} times, {'device' if on_device else 'host'}, {world} ranks"
    return truth


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    print(json.dumps(generate(int(sys.argv[1]), target), indent=1))
