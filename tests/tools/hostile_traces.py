#!/usr/bin/env python3
"""Writes traces with very many of one thing, and measures whether the program's time is linear in their number.

    hostile_traces.py --list
    hostile_traces.py --write NAME COUNT DIR           one run as rank<r>.json
    hostile_traces.py --shardlens BIN [--names A,B] [--count 20000] [--limit 3]
        runs `analyze`, `report` and `check` on COUNT and on twice as many, and prints the CPU seconds of both and
        their ratio; exits with 1 if a ratio is above the limit (quadratic: 4) where the longer run takes more than a second

A name is what there are many of. Every trace has little of everything else.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


class Rank:
    """The events of one rank; times in microseconds."""

    def __init__(self, rank=0, world=2):
        self.rank, self.world = rank, world
        self.events, self.groups, self.members, self.correlation = [], [], {}, 0

    def add(self, cat, name, start, duration, pid=1, tid=1, **args):
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args})

    def op(self, name, start, duration=1, tid=1, **args):
        self.add("cpu_op", name, start, duration, tid=tid, **args)

    def range(self, name, start, duration=1, tid=1):
        self.add("user_annotation", name, start, duration, tid=tid)

    def call(self, start, name="cudaLaunchKernel", tid=1, duration=1):
        self.correlation += 1
        self.add("cuda_runtime", name, start, duration, tid=tid, correlation=self.correlation)
        return self.correlation

    def kernel(self, name, start, duration, stream=7, launched=None, tid=1, cat="kernel", **args):
        correlation = self.call(launched, tid=tid) if launched is not None else self.correlation
        self.add(cat, name, start, duration, pid=0, tid=stream, device=0, stream=stream, correlation=correlation, **args)

    def collective(self, start, duration=5, stream=9, launched=None, what="AllGather", group="0", seq=None, elements=1024, description="default_pg",
                   ranks="[0, 1]", tid=1):
        names = {"AllGather": "_allgather_base", "ReduceScatter": "_reduce_scatter_base", "AllReduce": "allreduce", "AllToAll": "all_to_allv"}
        args = {"Collective name": names[what], "dtype": "BFloat16", "In msg nelems": elements, "Out msg nelems": 2 * elements, "Group size": 2,
                "Process Group Name": group, "Process Group Description": description, "Process Group Ranks": ranks}
        if seq is not None:
            args["Seq"] = seq
        self.kernel(f"ncclDevKernel_{what}_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, duration, stream, launched, tid, **args)

    def other(self, **event):
        self.events.append(event)

    def write(self, folder):
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_config": self.groups}
        with open(folder / f"rank{self.rank}.json", "w") as out:
            out.write(json.dumps({"schemaVersion": 1, "distributedInfo": info, **self.members})[:-1] + ', "traceEvents": [\n')
            out.write(",\n".join(json.dumps(event) for event in self.events))
            out.write("\n]}\n")


def steps(rank, count, length):
    for k in range(count):
        rank.range(f"ProfilerStep#{k}", k * length, length)


@kind
def groups(n):
    """process groups, each with a collective and an entry in the list"""
    r = Rank()
    for i in range(n):
        r.groups.append({"pg_name": str(i), "pg_desc": f"mesh_{i}", "pg_size": 2, "ranks": [0, 1]})
        r.op("aten::mm", 20 * i)
        r.kernel("gemm", 20 * i + 2, 5, launched=20 * i)
        r.collective(20 * i + 4, 30, launched=20 * i + 1, group=str(i), description="", seq=i)
    return [r]


@kind
def groups_at_once(n):
    """process groups whose collectives all overlap, on streams of their own"""
    r = Rank()
    for i in range(n):
        r.collective(2 * n + i, 2 * n - i, stream=100 + i, launched=i, group=str(i), description=f"mesh_{i % 7}", seq=1)
    return [r]


@kind
def groups_of_ranks(n):
    """process groups seen by two ranks"""
    out = []
    for rank in range(2):
        r = Rank(rank)
        for i in range(n):
            r.collective(20 * i + 4, 10, launched=20 * i + 1, group=str(i), description=f"mesh_{i}", seq=1)
        out.append(r)
    return out


@kind
def streams(n):
    """streams, each with kernels and a copy"""
    r = Rank()
    for i in range(n):
        r.kernel("gemm", 20 * i + 2, 30, stream=100 + i, launched=20 * i)
        r.kernel("Memcpy HtoD", 20 * i + 33, 2, stream=100 + i, launched=20 * i + 1, cat="gpu_memcpy")
    return [r]


@kind
def streams_with_waits(n):
    """streams, each of which waits for the one before"""
    r = Rank()
    for i in range(n):
        record = r.call(20 * i, "cudaEventRecord")
        wait = r.call(20 * i + 1, "cudaStreamWaitEvent")
        r.add("cuda_sync", "Stream Wait Event", 20 * i + 1, 1, pid=0, tid=101 + i, device=0, stream=101 + i, correlation=wait, wait_on_stream=100 + i,
              wait_on_cuda_event_record_corr_id=record, wait_on_cuda_event_id=i)
        r.kernel("gemm", 40 * n + 20 * i, 15, stream=101 + i, launched=20 * i + 3)
    return [r]


@kind
def counters(n):
    """counters with names of their own"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.other(ph="C", name=f"counter {i}", pid=i, tid=0, ts=i, args={f"value {i}": i})
    return [r]


@kind
def python_functions(n):
    """module frames, nested, with a collective in each"""
    r = Rank()
    for i in range(n):
        r.add("python_function", f"nn.Module: Linear_{i}", 4 * i, 12 * n - 8 * i)
        r.collective(4 * i + 2, 1, launched=4 * i + 1)
    return [r]


@kind
def module_frames(n):
    """modules one after the other, with a collective in each"""
    r = Rank()
    for i in range(n):
        r.add("python_function", f"nn.Module: Linear_{i}", 20 * i, 15)
        r.kernel("gemm", 20 * i + 3, 5, launched=20 * i + 1)
        r.collective(20 * i + 5, 10, launched=20 * i + 2)
    return [r]


@kind
def step_numbers(n):
    """steps"""
    r = Rank()
    steps(r, n, 40)
    for i in range(n):
        r.op("aten::mm", 40 * i + 1)
        r.kernel("gemm", 40 * i + 4, 10, launched=40 * i + 1)
        r.collective(40 * i + 9, 10, launched=40 * i + 2)
    return [r]


@kind
def steps_nested(n):
    """steps within steps"""
    r = Rank()
    for i in range(n):
        r.range(f"ProfilerStep#{i}", 20 * i, 60 * n - 40 * i)
        r.kernel("gemm", 20 * i + 4, 10, launched=20 * i + 1)
        r.collective(20 * i + 9, 10, launched=20 * i + 2)
    return [r]


@kind
def steps_alike(n):
    """steps with one number"""
    r = Rank()
    for i in range(n):
        r.range("ProfilerStep#1", 40 * i, 40)
        r.kernel("gemm", 40 * i + 4, 10, launched=40 * i + 1)
        r.collective(40 * i + 9, 10, launched=40 * i + 2)
    return [r]


@kind
def steps_of_host(n):
    """steps within steps, without a device"""
    r = Rank()
    for i in range(n):
        r.range(f"ProfilerStep#{i}", 20 * i, 60 * n - 40 * i)
        r.op("aten::mm", 20 * i + 1, 5)
        r.range("gloo:all_gather", 20 * i + 3, 10, tid=2)
    return [r]


@kind
def orders(n):
    """steps whose orders of units differ"""
    r = Rank()
    for i in range(n):
        t = 100 * i
        r.range(f"ProfilerStep#{i}", t, 100)
        r.range("FSDP::root_pre_forward", t + 1)
        for k in range(8):
            bits = (i >> (2 * k)) & 3
            r.range(f"FSDP::pre_forward (layers.{bits})", t + 2 + 8 * k)
            r.range(f"FSDP::all_gather (layers.{bits})", t + 4 + 8 * k)
            r.kernel("gemm", t + 7 + 8 * k, 2, launched=t + 6 + 8 * k)
            r.range(f"FSDP::post_forward (layers.{bits})", t + 8 + 8 * k)
    return [r]


@kind
def correlations(n):
    """kernels and launches whose correlations never match, with strides"""
    r = Rank()
    for i in range(n):
        r.add("cuda_runtime", "cudaLaunchKernel", 20 * i, 1, correlation=4096 * (2 * i + 1) % (1 << 31))
        r.add("kernel", "gemm", 20 * i + 2, 10, pid=0, tid=7, stream=7, device=0, correlation=4096 * (2 * i + 2) % (1 << 31))
    return [r]


@kind
def correlations_alike(n):
    """kernels with one correlation: a graph of many kernels"""
    r = Rank()
    r.call(1, "cudaGraphLaunch")
    for i in range(n):
        r.kernel("gemm", 20 * i + 2, 10)
        r.kernel("gemm", 20 * i + 9, 10, stream=8)
    return [r]


@kind
def flows(n):
    """flows that have no other end, and some that have"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        for cat in ("ac2g", "fwdbwd"):
            r.other(ph="s", id=i, cat=cat, name=cat, pid=1, tid=1, ts=i)
            r.other(ph="f", id=i + n // 2, cat=cat, name=cat, pid=1, tid=1, ts=i + 1, bp="e")
    return [r]


@kind
def threads(n):
    """threads, each with operators and launches"""
    r = Rank()
    for i in range(n):
        r.other(ph="M", name="thread_name", pid=1, tid=10 + i, ts=0, args={"name": f"thread {i}"})
        r.op("aten::mm", 20 * i, 10, tid=10 + i)
        r.kernel("gemm", 20 * i + 2, 5, launched=20 * i + 1, tid=10 + i)
        r.collective(20 * i + 5, 10, launched=20 * i + 2, tid=10 + i)
    return [r]


@kind
def threads_of_host(n):
    """threads with operators, without a device"""
    r = Rank()
    for i in range(n):
        r.op("aten::mm", 20 * i, 10, tid=10 + i)
        r.range("gloo:all_gather", 20 * i + 5, 10, tid=10 + n + i)
    return [r]


@kind
def processes(n):
    """processes with names and labels"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.other(ph="M", name="process_name", pid=i + 10, tid=0, ts=0, args={"name": f"process {i}"})
        r.other(ph="M", name="process_labels", pid=f"text {i}", tid=0, ts=0, args={"labels": f"label {i}"})
        r.add("cpu_op", "aten::mm", i, 1, pid=i + 10)
    return [r]


def fsdp_unit(r, name, t, forward=True):
    if forward:
        r.range(f"FSDP::pre_forward ({name})", t, 10)
        r.range(f"FSDP::all_gather ({name})", t + 1, 4)
        r.collective(t + 6, 8, launched=t + 2)
        r.range(f"FSDP::all_gather_copy_out ({name})", t + 6, 2)
        r.op("aten::mm", t + 12, 4)
        r.kernel("gemm", t + 15, 9, launched=t + 13)
        r.range(f"FSDP::post_forward ({name})", t + 18, 1)
    else:
        r.range(f"FSDP::pre_backward ({name})", t, 10)
        r.range(f"FSDP::all_gather ({name})", t + 1, 4)
        r.collective(t + 6, 8, launched=t + 2)
        r.kernel("gemm", t + 15, 9, launched=t + 11)
        r.range(f"FSDP::post_backward_reduce ({name})", t + 16, 3)
        r.collective(t + 24, 8, stream=10, launched=t + 17, what="ReduceScatter")


@kind
def units(n):
    """units of FSDP2, forward and backward"""
    r = Rank()
    r.range("ProfilerStep#0", 0, 50 * n + 100)
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        fsdp_unit(r, f"layers.{i}", 10 + 25 * i)
    for i in reversed(range(n)):
        fsdp_unit(r, f"layers.{i}", 10 + 25 * n + 25 * (n - 1 - i), forward=False)
    return [r]


@kind
def units_of_two_ranks(n):
    """units of FSDP2 on two ranks"""
    first = units(n)[0]
    second = Rank(1)
    second.events = first.events
    return [first, second]


@kind
def units_frozen(n):
    """units of FSDP2, all reduced after the backward"""
    r = Rank()
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        fsdp_unit(r, f"layers.{i}", 10 + 25 * i)
    t = 10 + 25 * n
    for i in reversed(range(n)):
        r.range(f"FSDP::pre_backward (layers.{i})", t, 2)
        r.kernel("gemm", t + 4, 9, launched=t + 3)
        t += 25
    for i in reversed(range(n)):
        r.range(f"FSDP::post_backward_reduce (layers.{i})", t, 3)
        r.collective(t + 4, 8, stream=10, launched=t + 1, what="ReduceScatter")
        t += 25
    return [r]


@kind
def units_of_units(n):
    """units within units: names of growing depth"""
    r = Rank()
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        name = f"a.{i // 100}.b.{i % 100}.c"
        r.range(f"FSDP::pre_forward ({name})", 10 + 4 * i)
        r.collective(20 * n + 10 + 4 * i, 2, launched=12 + 4 * i)
    for i in reversed(range(n)):
        name = f"a.{i // 100}.b.{i % 100}.c"
        r.range(f"FSDP::post_forward ({name})", 10 + 4 * n + 4 * (n - i))
    return [r]


@kind
def names_with_numbers(n):
    """units whose names differ in all their numbers"""
    r = Rank()
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        fsdp_unit(r, f"m{i % 3}.{i}.k{i * i % 17}.layers.{n - i}", 10 + 25 * i)
    return [r]


@kind
def gathered_again(n):
    """all-gathers of one unit in one forward"""
    r = Rank()
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        fsdp_unit(r, "layers.0", 10 + 25 * i)
    fsdp_unit(r, "layers.0", 10 + 25 * n, forward=False)
    r.range("FSDP::post_backward_reshard (layers.0)", 50 + 25 * n)
    r.range("Optimizer.step#AdamW.step", 60 + 25 * n)
    return [r]


@kind
def gathers_for_nothing(n):
    """all-gathers that no kernel of their unit follows"""
    r = Rank()
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        r.range(f"FSDP::all_gather (layers.{i % 100})", 10 + 25 * i, 4)
        r.collective(10 + 25 * i + 6, 8, launched=10 + 25 * i + 2)
        r.range("FSDP::pre_forward (other)", 10 + 25 * i + 15, 2)
        r.kernel("gemm", 10 + 25 * i + 22, 3, launched=10 + 25 * i + 20)
    return [r]


@kind
def fsdp1(n):
    """forwards and backwards of FSDP1"""
    r = Rank()
    t = 0
    for i in range(n):
        r.range("FullyShardedDataParallel.forward", t, 40 * n - 2 * i)
        r.range("FullyShardedDataParallel._pre_forward", t + 1, 5)
        r.collective(t + 6, 8, launched=t + 2)
        r.kernel("gemm", t + 15, 9, launched=t + 13)
        t += 20
    t = 41 * n
    for i in range(n):
        r.range("FullyShardedDataParallel._pre_backward_hook", t, 5)
        r.collective(t + 6, 8, launched=t + 2)
        r.range("FullyShardedDataParallel._post_backward_hook", t + 10, 5)
        r.collective(t + 16, 8, stream=10, launched=t + 12, what="ReduceScatter")
        t += 20
    return [r]


@kind
def ddp_passes(n):
    """forwards and backwards of DDP"""
    r = Rank()
    for i in range(n):
        t = 100 * i
        r.range("DistributedDataParallel.forward", t, 20)
        r.kernel("gemm", t + 10, 9, launched=t + 5)
        for k in range(2):
            r.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t + 30 + 20 * k, 8, tid=2)
            r.op("torch.distributed.ddp.reducer::mul_out", t + 31 + 20 * k, 2, tid=2)
            r.kernel("gemm", t + 33 + 20 * k, 3, launched=t + 31 + 20 * k, tid=2)
            r.op("c10d::allreduce_", t + 34 + 20 * k, 3, tid=2)
            r.collective(t + 40 + 20 * k, 12, launched=t + 35 + 20 * k, what="AllReduce", tid=2)
    return [r]


@kind
def ddp_buckets(n):
    """buckets of one backward of DDP"""
    r = Rank()
    r.range("DistributedDataParallel.forward", 0, 20)
    r.kernel("gemm", 10, 9, launched=5)
    for i in range(n):
        t = 30 + 20 * i
        r.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", t, 8, tid=2)
        r.op("torch.distributed.ddp.reducer::mul_out", t + 1, 2, tid=2)
        r.kernel("gemm", t + 3, 3, launched=t + 1, tid=2)
        r.op("c10d::allreduce_", t + 4, 3, tid=2)
        r.collective(t + 10, 12, launched=t + 5, what="AllReduce", tid=2)
    return [r]


def unnumbered(n, size):
    out = []
    for rank in range(2):
        r = Rank(rank)
        for i in range(n):
            if rank == 1 and i % 1000 == 3:
                continue  # lost
            r.collective(20 * i + 4 + rank, 10, launched=20 * i + 1, elements=size(i))
        out.append(r)
    return out


@kind
def without_seq(n):
    """collectives without Seq on two ranks, of one size"""
    return unnumbered(n, lambda i: 1024)


@kind
def without_seq_sizes(n):
    """collectives without Seq on two ranks, all of other sizes"""
    return unnumbered(n, lambda i: 1024 + i)


@kind
def without_seq_disagreeing(n):
    """collectives without Seq on two ranks that have other sizes"""
    out = []
    for rank in range(2):
        r = Rank(rank)
        for i in range(n):
            r.collective(20 * i + 4, 10, launched=20 * i + 1, elements=1024 + 2 * i + rank)
        out.append(r)
    return out


@kind
def without_seq_steps(n):
    """collectives without Seq on two ranks in many steps"""
    out = unnumbered(n, lambda i: 1024 + i % 3)
    for r in out:
        steps(r, n // 4, 80)
    return out


@kind
def with_seq(n):
    """numbered collectives on two ranks, late alternately"""
    out = []
    for rank in range(2):
        r = Rank(rank)
        for i in range(n):
            late = 5 if i % 2 == rank else 0
            r.collective(20 * i + 4 + late, 12 - late, launched=20 * i + 1, seq=i, elements=1024 + i % 50)
        out.append(r)
    return out


@kind
def seq_alike(n):
    """numbered collectives on two ranks, all with one number"""
    out = []
    for rank in range(2):
        r = Rank(rank)
        for i in range(n):
            r.collective(20 * i + 4, 12, launched=20 * i + 1, seq=7)
        out.append(r)
    return out


@kind
def sizes(n):
    """sizes of collectives"""
    r = Rank()
    for i in range(n):
        r.kernel("gemm", 20 * i + 2, 5, launched=20 * i)
        r.collective(20 * i + 4, 10, launched=20 * i + 1, seq=i, elements=1024 + i)
    return [r]


@kind
def collectives_nested(n):
    """collectives that run within each other"""
    r = Rank()
    for i in range(n):
        r.collective(2 * n + i, 6 * n - 2 * i, stream=9 + i % 50, launched=i, group=str(i % 20), seq=i)
        r.kernel("gemm", 9 * n + i, 1, launched=n + i)
    return [r]


@kind
def memory_devices(n):
    """devices with memory events"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.other(ph="i", cat="cpu_instant_event", s="t", name="[memory]", pid=1, tid=1, ts=i,
                args={"Device Type": 1, "Device Id": i, "Addr": i, "Bytes": 512, "Total Allocated": 512 * i, "Total Reserved": 1024 * i})
    return [r]


@kind
def memory_in_nested_steps(n):
    """memory events in steps within steps"""
    r = Rank()
    for i in range(n):
        r.range(f"ProfilerStep#{i}", 20 * i, 60 * n - 40 * i)
        r.kernel("gemm", 20 * i + 4, 10, launched=20 * i + 1)
        r.other(ph="i", cat="cpu_instant_event", s="t", name="[memory]", pid=1, tid=1, ts=20 * i + 3,
                args={"Device Type": 1, "Device Id": 0, "Addr": i, "Bytes": 512, "Total Allocated": 512 * i, "Total Reserved": 1024 * i})
    return [r]


@kind
def host_waits(n):
    """waits of the host within waits"""
    r = Rank()
    for i in range(n):
        r.op("aten::item", 10 * i, 30 * n - 20 * i)
        r.call(10 * i + 1, "cudaStreamSynchronize", duration=30 * n - 20 * i - 2)
        r.kernel("gemm", 10 * i + 4, 3, launched=10 * i + 3)
    return [r]


@kind
def host_waits_of_threads(n):
    """waits of the host, one on each thread, at once"""
    r = Rank()
    for i in range(n):
        r.op("aten::item", i, 30 * n, tid=10 + i)
        r.call(i + 1, "cudaStreamSynchronize", duration=20 * n, tid=10 + i)
        r.kernel("gemm", 40 * n + 4 * i, 3, launched=31 * n + i, tid=10 + i)
    return [r]


@kind
def host_waits_in_order(n):
    """waits of the host one after the other"""
    r = Rank()
    for i in range(n):
        t = 20 * i
        r.op("aten::item", t, 10)
        r.call(t + 1, "cudaStreamSynchronize", duration=8)
        r.kernel("gemm", t + 14, 5, launched=t + 12)
    return [r]


@kind
def operator_names(n):
    """names of operators, kernels and ranges"""
    r = Rank()
    for i in range(n):
        r.op(f"aten::op_{i}", 20 * i, 5)
        r.range(f"range {i}", 20 * i, 8)
        r.kernel(f"kernel_{i}<float>", 20 * i + 3, 5, launched=20 * i + 2)
    return [r]


@kind
def collective_names(n):
    """names of communication kernels and of groups without a kind"""
    r = Rank()
    for i in range(n):
        r.kernel(f"ncclKernel_mystery_{i}(int)", 20 * i + 3, 9, stream=9, launched=20 * i + 2)
    return [r]


@kind
def categories(n):
    """categories"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.add(f"category {i}", "event", i, 1)
    return [r]


@kind
def kernels_at_once(n):
    """kernels that start at one instant"""
    r = Rank()
    for i in range(n):
        r.kernel("gemm", 10 * n, 1 + i, stream=7 + i % 64, launched=i)
    return [r]


@kind
def kernels_of_no_length(n):
    """kernels of no length at one instant"""
    r = Rank()
    for i in range(n):
        r.kernel("gemm", 10 * n, 0, stream=7 + i % 64, launched=i)
    r.kernel("gemm", 10 * n + 5, 5, launched=n)
    return [r]


@kind
def open_ranges(n):
    """ranges that begin and end with events of their own, nested"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.other(ph="B", cat="user_annotation", name=f"range {i % 100}", pid=1, tid=1, ts=10 + i)
    for i in range(n):
        r.other(ph="E", cat="user_annotation", pid=1, tid=1, ts=10 + n + i)
    return [r]


@kind
def sections(n):
    """losses, norms and optimizers in turn"""
    r = Rank()
    for i in range(n):
        t = 100 * i
        r.range("FSDP::root_pre_forward", t)
        r.range("FSDP::pre_forward (a)", t + 2)
        r.range("FSDP::post_forward (a)", t + 4)
        r.op("aten::nll_loss_forward", t + 6, 2)
        r.kernel("gemm", t + 10, 3, launched=t + 6)
        r.range("FSDP::pre_backward (a)", t + 20)
        r.range("FSDP::post_backward_reshard (a)", t + 22)
        r.op("aten::linalg_vector_norm", t + 30, 3)
        r.kernel("gemm", t + 33, 3, launched=t + 31)
        r.range("Optimizer.step#AdamW.step", t + 40, 10)
        r.range("Optimizer.zero_grad#AdamW.zero_grad", t + 55, 5)
        r.kernel("gemm", t + 46, 3, launched=t + 41)
    return [r]


@kind
def notes(n):
    """overheads and unknown kinds of events"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    for i in range(n):
        r.add("overhead", f"Overhead {i}", i, 1, pid=-1)
        r.other(ph="?", name=f"strange {i}", ts=i)
        r.other(ph="X", cat="kernel", name=f"no time {i}", pid=0, tid=7)
    return [r]


@kind
def top_level(n):
    """members of the file beside the events"""
    r = Rank()
    r.kernel("gemm", 5, 5, launched=1)
    r.members = {f"member {i}": i for i in range(n)}
    return [r]


@kind
def peer_copies(n):
    """peer copies in nested calls of symmetric memory"""
    r = Rank()
    for i in range(n):
        r.op("symm_mem::one_shot_all_reduce", 5 * i, 20 * n - 10 * i)
        r.kernel("Memcpy PtoP (Device -> Device)", 30 * n + 4 * i, 3, stream=9, launched=5 * i + 1, cat="gpu_memcpy")
    return [r]


@kind
def casts(n):
    """casts of parameters again"""
    r = Rank()
    r.range("Optimizer.step#AdamW.step", 0)
    r.range("FSDP::root_pre_forward", 1)
    for i in range(n):
        t = 10 + 50 * i
        r.range("FSDP::pre_forward (a)", t, 30)
        r.range("FSDP::all_gather (a)", t + 1, 20)
        r.op("aten::_to_copy", t + 2, 4)
        r.kernel("cast", t + 5, 4, launched=t + 3)
        r.op("fsdp::all_gather_copy_in", t + 8, 4)
        r.collective(t + 16, 8, launched=t + 14)
        r.range("FSDP::post_forward (a)", t + 40, 1)
    r.range("Optimizer.step#AdamW.step", 20 + 50 * n)
    return [r]


@kind
def ranks(n):
    """ranks (a fiftieth of the number), each with a few collectives"""
    out = []
    for rank in range(max(2, n // 50)):
        r = Rank(rank, max(2, n // 50))
        for i in range(8):
            r.kernel("gemm", 20 * i + 2, 5, launched=20 * i)
            r.collective(20 * i + 4, 10, launched=20 * i + 1, seq=i, ranks="all")
        out.append(r)
    return out


def add_steps(rank):
    """Six steps, which `check` needs."""
    starts = [event["ts"] for event in rank.events if event["ph"] == "X" and "ts" in event and event["pid"] != 0]
    length = (max(starts, default=60) + 6) // 6 + 1
    for k in range(6):
        rank.range(f"ProfilerStep#{k}", k * length, length)


def write(name, count, folder, with_steps=False):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in KINDS[name](count):
        if with_steps and not any("ProfilerStep" in event.get("name", "") for event in rank.events):
            add_steps(rank)
        rank.write(folder)


def seconds(command, limit):
    """CPU seconds; limit if it takes longer."""
    with open(os.devnull, "w") as null:
        process = subprocess.Popen(command, stdout=null, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)))
        message = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 5) and code >= 0:
        print(f"{' '.join(map(str, command))}: exit code {code}: {message[:300]}", file=sys.stderr)
    return usage.ru_utime + usage.ru_stime if code >= 0 else float(limit)


def commands(program, path, work):
    path = path if len(list(path.iterdir())) > 1 else next(path.iterdir())
    return {"analyze": [program, "analyze", path], "--json": [program, "analyze", "--json", path],
            "spans": [program, "analyze", "--csv", "--by", "span", path], "path": [program, "analyze", "--critical-path", path],
            "report": [program, "report", path, "--out", work / "report.html"]}


def measure(program, name, count, limit, work):
    rows = {}
    for size in (count, 2 * count):
        folder = work / f"{name}.{size}"
        write(name, size, folder)
        todo = commands(program, folder, work)
        for what, command in todo.items():
            rows.setdefault(what, []).append(seconds(command, 12))
        write(name, size, folder, with_steps=True)
        rows.setdefault("check", []).append(seconds([program, "check", "--baseline", folder, "--candidate", folder], 12))
        for file in folder.iterdir():
            file.unlink()
    bad = False
    text = []
    for what, (one, two) in rows.items():
        ratio = two / max(one, 0.01)
        slow = two > 1 and ratio > limit
        bad = bad or slow
        text.append(f"{what} {one:.2f} {two:.2f} ({ratio:.1f}){' !!' if slow else ''}")
    print(f"{name:24} {'   '.join(text)}", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", nargs=3, metavar=("NAME", "COUNT", "DIR"))
    parser.add_argument("--shardlens")
    parser.add_argument("--names")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--limit", type=float, default=3)
    options = parser.parse_args()
    if options.list:
        for name, function in KINDS.items():
            print(f"{name:24} {function.__doc__}")
    elif options.write:
        write(options.write[0], int(options.write[1]), options.write[2])
    elif options.shardlens:
        names = options.names.split(",") if options.names else list(KINDS)
        with tempfile.TemporaryDirectory() as work:
            sys.exit(any([measure(options.shardlens, name, options.count, options.limit, Path(work)) for name in names]))
    else:
        parser.error("one of --list, --write and --shardlens")


if __name__ == "__main__":
    main()
