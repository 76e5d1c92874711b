#!/usr/bin/env python3
"""Generates traces of many ranks as torch.profiler writes them of FSDP2 on GPUs: operators with shapes, launches, kernels, and NCCL's collectives.

    generate_ranks.py RANKS DIR [--layers 4] [--steps 2] [--operators 24] [--plain] [--seed 1]

All ranks are one process group, "mesh_shard". Each has a clock of its own, up to 2 ms off; some are late now and then; the ends of a collective
scatter by up to 2 us over the ranks. Files are rank<r>.pt.trace.json.gz (--plain: without .gz).

`generate()` returns the clocks, minus that of the middle rank, by rank.
"""
import argparse
import gzip
import json
import random
from pathlib import Path

EPOCH = 1_764_000_000_000_000_000
US = 1000
KERNELS = {"all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
           "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")}
OPERATORS = ("aten::mm", "aten::mul", "aten::add", "aten::silu", "aten::rsqrt", "aten::copy_", "aten::_softmax", "aten::bmm")
COMPUTE, GATHER, REDUCE = 7, 20, 24


class Rank:
    """One rank's rows, as text; times are those of its own clock."""

    def __init__(self, number, clock):
        self.number, self.rows, self.base = number, [], EPOCH + clock
        self.host = self.free = 2_000_000
        self.stream = {GATHER: 0, REDUCE: 0}
        self.correlation = self.sequence = 0

    def row(self, category, name, pid, tid, start, end, args):
        begin = self.base + start
        length = end - start
        self.rows.append(f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {begin // 1000}.{begin % 1000:03d}, '
                         f'"dur": {length // 1000}.{length % 1000:03d}, "args": {{{args}}}}}')

    def range(self, name, length=4 * US):
        self.row("user_annotation", name, 1, 100, self.host, self.host + length, f'"External id": {self.correlation}')
        self.host += length + US

    def launch(self):
        self.correlation += 1
        at = self.host
        self.row("cuda_runtime", "cudaLaunchKernel", 1, 100, at, at + US, f'"External id": {self.correlation}, "cbid": 211, "correlation": {self.correlation}')
        begin = self.base + at
        self.rows.append(f'{{"ph": "s", "id": {self.correlation}, "pid": 1, "tid": 100, "ts": {begin // 1000}.{begin % 1000:03d}, "cat": "ac2g", "name": "ac2g"}}')
        self.host += 2 * US
        return at + 5 * US

    def kernel(self, name, stream, start, end, more=""):
        n = self.correlation
        self.row("kernel", name, 0, stream, start, end,
                 f'"External id": {n}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": {n}, "registers per thread": 90, '
                 f'"shared memory": 49152, "blocks per SM": 7.757576, "warps per SM": 62.060608, "grid": [{n % 64 + 1}, 8, 1], "block": [128, 1, 1], '
                 f'"est. achieved occupancy %": 25{more}')
        begin = self.base + start
        self.rows.append(f'{{"ph": "f", "id": {n}, "pid": 0, "tid": {stream}, "ts": {begin // 1000}.{begin % 1000:03d}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}')

    def compute(self, rng, count, mean):
        """`count` operators, each with its kernel."""
        for i in range(count):
            name, start = OPERATORS[i % len(OPERATORS)], self.host
            self.host += US
            earliest = self.launch()
            self.row("cpu_op", name, 1, 100, start, self.host,
                     f'"External id": {self.correlation}, "Sequence number": {self.correlation}, "Fwd thread id": 0, "Record function id": 0, '
                     f'"Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], '
                     f'"Input Strides": [[4096, 1], [1, 4096], []], "Input Dims": [[{2048 + i}, 4096], [4096, 4096], []], "Ev Idx": {len(self.rows)}')
            begin = max(self.free + 500, earliest)
            self.free = begin + int(mean * rng.uniform(0.6, 1.4))
            self.kernel(f"void at::native::vectorized_elementwise_kernel<{i % 4}>" if i % 8 else "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn", COMPUTE,
                        begin, self.free)

    def pace(self):
        """The host is at most 300 us ahead of the device."""
        self.host = max(self.host, self.free - 300 * US)


def collective(rng, ranks, kind, stream, elements, length, unit, name):
    """One collective of all ranks, issued now; returns its ends by rank."""
    c10d, kernel = KERNELS[kind]
    starts = []
    for rank in ranks:
        begin = rank.host
        earliest = rank.launch()
        rank.row("user_annotation", f"FSDP::{name} ({unit})" if unit else f"FSDP::{name}", 1, 100, begin - US, rank.host + US, f'"External id": {rank.correlation}')
        rank.host += 2 * US
        ready = rank.free if kind == "reduce_scatter" else 0
        starts.append(max(earliest, rank.stream[stream] + US, ready) + rng.randint(0, 20) * US)
    last = max(starts)
    ends = []
    for rank, start in zip(ranks, starts):
        end = last + length + rng.randint(0, 2 * US)
        sent, received = (elements, elements * len(ranks)) if kind == "all_gather" else (elements * len(ranks), elements)
        rank.kernel(kernel, stream, start, end,
                    f', "Collective name": "{c10d}", "In msg nelems": {sent}, "Out msg nelems": {received}, "Group size": {len(ranks)}, "dtype": "BFloat16", '
                    f'"Process Group Name": "1", "Process Group Description": "mesh_shard", "Process Group Ranks": "{list(range(len(ranks)))[:8]}", "Seq": {rank.sequence}')
        rank.sequence += 1
        rank.stream[stream] = end
        ends.append(end)
    return ends


def step(rng, ranks, number, layers, operators):
    begins = [rank.host for rank in ranks]
    late = {rng.randrange(len(ranks)): rng.randint(50, 400) * US for _ in range(max(1, len(ranks) // 8))}
    unit = [f"model.layers.{i}" for i in range(layers)]
    for i, rank in enumerate(ranks):
        rank.host += late.get(i, 0)
        rank.range("FSDP::root_pre_forward")
    gathered = {0: collective(rng, ranks, "all_gather", GATHER, 200_000, 150 * US, unit[0], "all_gather")}
    for i in range(layers):
        for rank in ranks:
            rank.range(f"FSDP::pre_forward ({unit[i]})")
        if i + 1 < layers:
            gathered[i + 1] = collective(rng, ranks, "all_gather", GATHER, 200_000, rng.choice([150, 150, 900]) * US, unit[i + 1], "all_gather")
        for rank, end in zip(ranks, gathered[i]):
            rank.free = max(rank.free, end)
            rank.compute(rng, operators, 15 * US)
            rank.range(f"FSDP::post_forward ({unit[i]})")
            rank.pace()
    gathered = {}
    for i in reversed(range(layers)):
        for rank in ranks:
            rank.range(f"FSDP::pre_backward ({unit[i]})")
        if i not in gathered:
            gathered[i] = collective(rng, ranks, "all_gather", GATHER, 200_000, 150 * US, unit[i], "all_gather")
        if i > 0:
            gathered[i - 1] = collective(rng, ranks, "all_gather", GATHER, 200_000, 150 * US, unit[i - 1], "all_gather")
        for rank, end in zip(ranks, gathered[i]):
            rank.free = max(rank.free, end)
            rank.compute(rng, 2 * operators, 12 * US)
            rank.range(f"FSDP::post_backward_reshard ({unit[i]})")
        collective(rng, ranks, "reduce_scatter", REDUCE, 200_000, 200 * US, unit[i], "post_backward_reduce")
        for rank in ranks:
            rank.pace()
    for begin, rank in zip(begins, ranks):
        rank.host = rank.free = max(rank.free, *rank.stream.values()) + 20 * US
        rank.range("Optimizer.step#AdamW.step")
        rank.row("user_annotation", f"ProfilerStep#{number}", 1, 100, begin, rank.host, '"External id": 1')
        rank.host += 2 * US


def generate(count, directory, layers=4, steps=2, operators=24, plain=False, seed=1):
    rng = random.Random(seed)
    clocks = [rng.randint(-2_000_000, 2_000_000) for _ in range(count)]
    ranks = [Rank(number, clock) for number, clock in enumerate(clocks)]
    for number in range(steps):
        step(rng, ranks, number, layers, operators)
    directory.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
                "distributedInfo": {"backend": "nccl", "rank": rank.number, "world_size": count}}
        text = (json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(rank.rows) + "]}").encode()
        name = f"rank{rank.number}.pt.trace.json"
        if plain:
            (directory / name).write_bytes(text)
        else:
            (directory / (name + ".gz")).write_bytes(gzip.compress(text, 4))
        rank.rows = []
    middle = sorted(clocks)[(count - 1) // 2]
    return [clock - middle for clock in clocks]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("directory", type=Path)
    for name, value in (("layers", 4), ("steps", 2), ("operators", 24), ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--plain", action="store_true")
    options = vars(parser.parse_args())
    generate(options.pop("ranks"), options.pop("directory"), **options)


if __name__ == "__main__":
    main()
