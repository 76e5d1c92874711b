#!/usr/bin/env python3
"""Trains with each client of shardlens.clients on two Gloo ranks, once without and once with it, and watches steps that are recorded.

    client_training.py OUT [CASE…]   writes OUT/<case>/ (run directories) and OUT/<case>.rank<r>.json: losses of both trainings, what was watched, and
                                     the CPU time of each step (tests/tools/own_time.py)

The examples and their packages are imported once, before the ranks are forked: that takes longer than the training.
"""
import dataclasses
import importlib
import json
import multiprocessing
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import shardlens
from shardlens import clients

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "tools"))
import own_time  # noqa: E402

WATCHED = 4  # of the recorded steps 3 to 5


def trainer(directory, told):
    import record_trainer

    return record_trainer.train([] if directory is None else [clients.TrainerCallback(directory, watch=WATCHED, log=told.append)]), None


def lightning(directory, told):
    import record_lightning

    return record_lightning.train([] if directory is None else [clients.LightningCallback(directory, watch=WATCHED, log=told.append)]), None


def accelerate(directory, told):
    import record_accelerate

    return record_accelerate.train(directory), None


def torchtitan(directory, told):
    import record_torchtitan

    return record_torchtitan.train(directory), None


def trl(directory, told):
    import record_trl

    return record_trl.train([] if directory is None else [clients.TrainerCallback(directory, watch=WATCHED, log=told.append)]), None


def a_loop(shard, directory, told):
    """recorded_training.py's model in a loop of two microbatches a step."""
    import recorded_training

    torch.manual_seed(0)
    model = shard(recorded_training.Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    session = clients.record_loop(directory, model=model, optimizer=optimizer, watch=WATCHED, log=told.append) if directory else None
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)  # it wraps optimizer.step(), too
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(7):
        for _ in range(2):
            tokens = torch.randint(0, 17, (4, 6))
            loss = torch.nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses, session and session.watch


def fsdp2(directory, told):
    import recorded_training

    return a_loop(recorded_training.fsdp2_prefetch, directory, told)


def fsdp1(directory, told):
    import recorded_training

    return a_loop(recorded_training.fsdp1, directory, told)


def wide(directory, told):
    """Two wide layers, because the CPU time inside hooks is compared with that of a step, which the other cases have little of. Only with its client."""
    if directory is None:
        return [], None
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(torch.nn.Linear(3072, 3072) for _ in range(2)))
    for layer in model:
        fully_shard(layer)
    optimizer = torch.optim.SGD(fully_shard(model).parameters(), lr=0.1)
    session = clients.record_loop(directory, model=model, optimizer=optimizer, warmup=1, steps=2, watch=4, log=told.append)
    x = torch.ones(128, 3072)
    for _ in range(6):  # 1 and 2 are recorded, 4 is watched
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.end()
    return [], session.watch


CASES = {case.__name__: case for case in (trainer, lightning, accelerate, torchtitan, trl, fsdp2, fsdp1, wide)}
EXAMPLES = ("trainer", "lightning", "accelerate", "torchtitan", "trl")


def work(rank, port, out, cases):
    # As torchrun has them: Lightning then starts no processes of its own.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCHELASTIC_RUN_ID="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=2)  # as torchrun's
    for case in cases:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told, watches, make = [], [], clients.session.Watch
            clients.session.Watch = lambda *args, **kwargs: watches.append(make(*args, **kwargs)) or watches[-1]
            plain, _ = CASES[case](None, told)
            with own_time.OwnTime() as clock:
                recorded, _ = CASES[case](out / case, told)
            clients.session.Watch = make
        said = [str(each.message) for each in caught if "shardlens" in str(each.message)]
        found = {
            "plain": plain, "recorded": recorded, "lines": told, "watched": watches[0].last if watches else None, "warnings": said,
            "steps": [dataclasses.asdict(step) for step in clock.steps]}
        (out / f"{case}.rank{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def read(out, case, rank):
    """What a rank wrote about a case."""
    return json.loads((out / f"{case}.rank{rank}.json").read_text())


def main(out, cases):
    import shardlens.clients.session  # noqa: F401

    sys.path.insert(0, str(ROOT / "examples" / "python"))
    for case in cases:
        importlib.import_module(f"record_{case}" if case in EXAMPLES else "recorded_training")
    assert shardlens.watch is not None  # no module took the name of the function
    context = multiprocessing.get_context("fork")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [context.Process(target=work, args=(rank, store.port, out, cases)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return next((rank.exitcode for rank in ranks if rank.exitcode), 0)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    sys.exit(main(out, sys.argv[2:] or list(CASES)))
