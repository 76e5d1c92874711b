#!/usr/bin/env python3
"""Measures what the recorder's wrapping costs beyond torch.profiler's own: CPU time of training steps on two Gloo ranks, in alternating blocks of one process.

    recorder_cost.py [--rounds 20] [--steps 2] [--hidden 384] [--blocks 6]

A round has three blocks of steps in random order: without a profiler, with torch.profiler as shardlens.record sets it up, and with the wrappers
around FSDP2 too. Each step's CPU time is that of the whole process (all threads). Printed: medians, and the change of paired blocks with the
interval of its median; then the wrappers' calls of a step times the cost of one, which is measured by itself. Exit code 1 if that is more than
0.5 % of a step's CPU time.
"""
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "tools")]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import ratios  # noqa: E402
import two_ranks  # noqa: E402
import what_if_fsdp2  # noqa: E402
from shardlens.live_actions import ActionLog  # noqa: E402

BLOCKS = ("no profiler", "torch.profiler", "and wrappers")


def profiler():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)


def block(kind, model, optimizer, options):
    """CPU seconds of a step, and the rows that the wrappers wrote for it."""
    log = ActionLog(model) if kind == "and wrappers" else None
    active = profiler() if kind != "no profiler" else None
    if active:
        active.start()
    what_if_fsdp2.step(model, optimizer, options)  # the first one after a start is slower
    if log:
        log.recording = True
    dist.barrier()
    begin = time.process_time()
    for _ in range(options.steps):
        what_if_fsdp2.step(model, optimizer, options)
    taken = time.process_time() - begin
    if active:
        active.stop()
    rows = 0
    if log:
        rows = len(log.rows) // options.steps
        assert log.failure is None, log.failure
        log.remove()
    return taken / options.steps, rows


def cost_of_a_call():
    """Seconds that a wrapper adds to a call, with a row each: of a hook, which has the dearest."""

    log = ActionLog(torch.nn.Linear(1, 1))
    log.recording = True
    wrapped = log._hook("layers.0", "post_forward")(lambda: None)
    plain = (lambda: None)
    times = []
    for _ in range(20):
        log.rows.clear()
        begin = time.process_time()
        for _ in range(5000):
            wrapped()
        middle = time.process_time()
        for _ in range(5000):
            plain()
        times.append((2 * middle - begin - time.process_time()) / 5000)
    return statistics.median(times)


def work(rank, store, options):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model, optimizer = what_if_fsdp2.sharded(what_if_fsdp2.VARIANTS[0], options)
    order, rows = random.Random(0), 0
    times = {kind: [] for kind in BLOCKS}
    for turn in range(options.rounds + 1):
        for kind in order.sample(BLOCKS, len(BLOCKS)):
            taken, seen = block(kind, model, optimizer, options)
            rows = seen or rows
            if turn > 0:
                times[kind].append(taken)
    dist.destroy_process_group()
    if rank == 0:
        report(times, rows)


def paired(a, b):
    """Median of the relative changes from a to b, and half the width of its interval (1.57 IQR / sqrt n)."""
    changes = [y / x - 1 for x, y in zip(a, b)]
    quartiles = statistics.quantiles(changes, n=4)
    return statistics.median(changes), 1.57 * (quartiles[2] - quartiles[0]) / len(changes) ** 0.5


def report(times, rows):
    for kind in BLOCKS:
        print(f"{kind:16}{1e3 * statistics.median(times[kind]):9.2f} ms of CPU a step")
    for a, b in zip(BLOCKS, BLOCKS[1:]):
        change, noise = paired(times[a], times[b])
        print(f"{b}: {change:+.2%} ± {noise:.2%} of {a}")
        ratios.report(f"recorder/{b.replace(' ', '-')}", ratios.by_round(times[b], times[a]))
    each = cost_of_a_call()
    share = rows * each / statistics.median(times["torch.profiler"])
    print(f"{rows} rows a step, {1e6 * each:.2f} us each: {share:.3%} of a step's CPU time", flush=True)
    sys.exit(0 if share <= 0.005 else 1)


if __name__ == "__main__":
    two_ranks.main(work, __doc__, rounds=20, steps=2)
