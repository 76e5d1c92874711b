#!/usr/bin/env python3
"""Measures what shardlens.watch and the clients' session cost a training step, by the thread's CPU clock: one FSDP2 model on two Gloo ranks.

    client_cost.py [--steps 20] [--hidden 384] [--blocks 6]

Every step is watched here. A step's cost is that of end_step() and begin_step(), as the thread's clock has them, and its wrapped calls times the cost of
one, which is measured by itself around functions that do nothing. Exit code 1 if a watched step's is more than 0.5 % of the step's CPU time.
"""
import os
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

import two_ranks  # noqa: E402
import what_if_fsdp2  # noqa: E402
from shardlens import live_watch  # noqa: E402
from shardlens.clients import Session  # noqa: E402
from shardlens.live_collectives import CollectiveLog, HostMarks  # noqa: E402

CALLS = 5000


def added(wrapped, plain, reset):
    """Seconds of CPU that a wrapper adds to a call: the median of 20 measurements."""
    times = []
    for _ in range(20):
        begin = time.thread_time()
        for _ in range(CALLS):
            wrapped()
        middle = time.thread_time()
        for _ in range(CALLS):
            plain()
        times.append((2 * middle - begin - time.thread_time()) / CALLS)
        reset()
    return statistics.median(times)


def cost_of_a_hook():
    class Unit:
        name = "layers.0"

        class group:
            class _training_state:
                name = "IDLE"

    log = live_watch._StepLog(torch.nn.Linear(1, 1), CollectiveLog(HostMarks()))
    return added(log.around(lambda: None, *log._hook(Unit, "pre_forward")), lambda: None, log.rows.clear)


def cost_of_a_collective():
    log = CollectiveLog(HostMarks())
    log.inside = 1

    def plain(output, input, group=None):
        return None

    wrapped = log._around(plain, 2, "all_gather")
    return added(lambda: wrapped(1, 2, group=dist.group.WORLD), lambda: plain(1, 2, group=dist.group.WORLD), log.calls.clear)


def work(rank, store, options):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model, optimizer = what_if_fsdp2.sharded(what_if_fsdp2.VARIANTS[0], options)
    plain, ours, rows, calls = [], [], [], []
    for _ in range(options.steps):
        begin = time.thread_time()
        what_if_fsdp2.step(model, optimizer, options)
        plain.append(time.thread_time() - begin)
    session = Session(watch=1, log=lambda line: None)
    session.begin(model, optimizer)
    for step in range(options.steps):
        what_if_fsdp2.step(model, optimizer, options)
        actions = session.watch._actions
        if actions is not None:
            rows.append(len(actions.rows))
            calls.append(len(actions.collectives.calls))
        begin = time.thread_time()
        session.step()
        if step > 1:
            ours.append(time.thread_time() - begin)
    assert session.watch.last is not None and not session.watch._failed
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        step, edge = statistics.median(plain), statistics.median(ours)
        hooks, collectives = statistics.median(rows), statistics.median(calls)
        hook, collective = cost_of_a_hook.measured, cost_of_a_collective.measured
        total = edge + hooks * hook + collectives * collective
        print(f"a step: {1e3 * step:.1f} ms of CPU; session.step() of a watched one: {1e6 * edge:.0f} us; {hooks:.0f} rows of hooks, {1e6 * hook:.2f} us each; "
              f"{collectives:.0f} collectives, {1e6 * collective:.2f} us each")
        print(f"a watched step: {total / step:.3%} of its CPU time; with every=100: {total / step / 100:.5%}", flush=True)
        sys.exit(0 if total <= 0.005 * step else 1)


def start(rank, store, options):
    if rank == 0:  # before the ranks wait for each other
        one = f"{store}-one"
        dist.init_process_group("gloo", init_method=f"file://{one}", rank=0, world_size=1)
        cost_of_a_hook.measured, cost_of_a_collective.measured = cost_of_a_hook(), cost_of_a_collective()
        dist.destroy_process_group()
    work(rank, store, options)


if __name__ == "__main__":
    two_ranks.main(start, __doc__, steps=20)
