#!/usr/bin/env python3
"""Compares the time of PyTorch's all-reduce over Gloo with that of a reduce-scatter and an all-gather, of which it consists.

    bench/gloo_all_reduce.py [--ranks 2,3,4,6,8] [--megabytes 6,12.65,28.1] [--rounds 30]

Runs single-threaded processes on this machine, which send messages. The engine's ranks do so only between machines, or where they may not read each
other's memory. The reduce-scatter is theirs then (core/dist/gloo_backend.cpp): an all-to-all and a sum; Gloo's own is an all-reduce. The three run alternately. Prints medians and the share: the all-reduce's time over the sum of the others; at the end of each number of ranks
the median share over sizes. The reduce-scatter and the all-gather each copy a rank's own part, 1/ranks of the message, so 1 - share decreases with the
number of ranks. (1 - share) · ranks is the constant that CalibratedCostModel uses to compute an all-reduce that was not measured from the two others.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def measure(rank, ranks, sizes, rounds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    torch.set_num_threads(1)
    shares = []
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    for megabytes in sizes:
        full = torch.randn(int(megabytes * 1e6 / 4 / ranks) * ranks)
        shard, received = torch.empty(full.numel() // ranks), torch.empty_like(full)

        def reduce_scatter():
            dist.all_to_all_single(received, full)
            torch.sum(received.view(ranks, -1), 0, out=shard)

        calls = {"all-gather": lambda: dist.all_gather_into_tensor(full, shard), "reduce-scatter": reduce_scatter,
                 "all-reduce": lambda: dist.all_reduce(full)}
        taken = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                dist.barrier()
                begin = time.perf_counter()
                call()
                taken[name].append((time.perf_counter() - begin) * 1e3)
        ms = {name: statistics.median(times) for name, times in taken.items()}
        if rank == 0:
            shares.append(ms["all-reduce"] / (ms["all-gather"] + ms["reduce-scatter"]))
            print(f"{ranks} ranks, {megabytes:6.2f} MB: " + ", ".join(f"{name} {t:.2f} ms" for name, t in ms.items()) + f"; share {shares[-1]:.2f}", flush=True)
    if rank == 0:
        share = statistics.median(shares)
        print(f"{ranks} ranks: share {share:.2f}, missing times ranks {(1 - share) * ranks:.2f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,3,4,6,8")
    parser.add_argument("--megabytes", default="6,12.65,28.1")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    sizes = [float(size) for size in options.megabytes.split(",")]
    for ranks in map(int, options.ranks.split(",")):
        processes.spawn(measure, args=(ranks, sizes, options.rounds), nprocs=ranks)


if __name__ == "__main__":
    main()
