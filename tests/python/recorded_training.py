#!/usr/bin/env python3
"""Trains a small model on two Gloo ranks under FSDP2, FSDP1 and DDP, each once without and once with shardlens.record.

    recorded_training.py OUT [CASE…]   writes OUT/<case>/ (run directories), OUT/<case>.losses.json (rank 0's losses of both trainings) and
                                       OUT/<case>.shards<rank>.json (elements of each parameter that FSDP2 gave the rank)
"""
import contextlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import _runtime_utils, fully_sharded_data_parallel

import shardlens

STEPS = 5


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class Model(nn.Module):
    """Tied embedding and head, three blocks, and a scale that FSDP2 shards unevenly."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.layers = nn.ModuleList(Block(8) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, swapped=False):
        x = self.embed(tokens)
        layers = [self.layers[i] for i in ((1, 0, 2) if swapped else (0, 1, 2))]
        for layer, scale in zip(layers, self.scale):
            x = layer(x) * scale
        return self.head(x)


def fsdp2(model, **settings):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, **settings)
    return fully_shard(model, **settings)


def fsdp2_prefetch(model):
    fsdp2(model, reshard_after_forward=True)
    model.layers[0].set_modules_to_forward_prefetch([model.layers[1], model.layers[2]])
    model.layers[2].set_modules_to_backward_prefetch([model.layers[1], model.layers[0]])
    return model


def fsdp2_bf16(model):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp2(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), reshard_after_forward=False)


def fsdp2_group(model):
    from torch.distributed.fsdp import fully_shard

    fully_shard([model.layers[0], model.layers[1]])
    return fully_shard(model)


def fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu"))


def ddp(model):
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001, gradient_as_bucket_view=True)


def without_prefetch(model, faulty):
    """The first block's list of prefetches is empty in the faulty step only."""
    model.layers[0].set_modules_to_forward_prefetch([] if faulty else [model.layers[1], model.layers[2]])


def gathered_twice(model, faulty):
    if faulty:
        model.layers[1].unshard()
        model.layers[1].reshard()


FAULTY_STEP = 3  # of the recorded steps 2 to 4
# case: how the model is sharded, what is done before each step, whether the forward's order changes in the faulty step
FAULTS = {
    "fault-order": (fsdp2, lambda model, faulty: None, True),
    "fault-prefetch": (fsdp2_prefetch, without_prefetch, False),
    "fault-twice": (fsdp2, gathered_twice, False),
    # No fault: a setting that a program changes between backwards, and that is the default again when the recording ends.
    "kept-once": (fsdp2, lambda model, faulty: model.set_reshard_after_backward(not faulty), False),
}
CASES = {"fsdp2": fsdp2, "fsdp2-prefetch": fsdp2_prefetch, "fsdp2-bf16": fsdp2_bf16, "fsdp2-group": fsdp2_group, "fsdp1": fsdp1, "ddp": ddp, "broken": fsdp2, "broken-inside": fsdp2}


def train(shard, record):
    """The losses of STEPS steps of two microbatches each."""
    torch.manual_seed(0)
    model = shard(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    with record(model, optimizer) as rec:
        for _ in range(STEPS):
            for _ in range(2):
                tokens = torch.randint(0, 17, (4, 6))
                logits = model(tokens).float()
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if rec is not None:
                rec.step(loss)
    methods = [name for unit in shardlens.live_units.fsdp2_units(model) for name in vars(unit.group) if name in ("unshard", "reshard", "post_backward")]
    methods += [name for name, value in vars(_runtime_utils).items() if getattr(value, "__module__", "").startswith("shardlens")]
    methods += [name for name, value in vars(fully_sharded_data_parallel).items() if getattr(value, "__module__", "").startswith("shardlens")]
    return losses, methods, local_elements(model)


def local_elements(model):
    return {name: p.to_local().numel() for name, p in model.named_parameters() if hasattr(p, "to_local")}


def train_with_a_fault(out, case):
    shard, before, swaps = FAULTS[case]
    torch.manual_seed(0)
    model = shard(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlens.record(out / case, model=model, optimizer=optimizer, steps=3) as rec:
        for step in range(STEPS):
            faulty = step == FAULTY_STEP
            before(model, faulty)
            model(torch.randint(0, 17, (4, 6)), swaps and faulty).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.step()


def work(rank, store, out, cases):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    import shardlens.live_actions
    import shardlens.live_units  # noqa: F401

    for case in [case for case in FAULTS if case in cases]:
        train_with_a_fault(out, case)
    for case in [case for case in CASES if case in cases]:
        shard = CASES[case]
        plain, _, _ = train(shard, lambda model, optimizer: contextlib.nullcontext())
        said = []

        def record(model, optimizer, case=case):
            if case == "broken":  # a fault inside the recorder, in the middle of training
                rec = shardlens.record(out / case, model=model, optimizer=optimizer, steps=2)
                rec._set_recording = lambda on: 1 // 0
                return rec
            if case == "broken-inside":  # a fault in what is around PyTorch's own functions
                rec = shardlens.record(out / case, model=model, optimizer=optimizer, steps=2)
                shardlens.live_actions._last_reduction = lambda group: 1 // 0
                return rec
            return shardlens.record(out / case, model=model, optimizer=optimizer, steps=2)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            recorded, left_over, shards = train(shard, record)
            said += [str(w.message) for w in caught if "shardlens" in str(w.message)]
        (out / f"{case}.shards{rank}.json").write_text(json.dumps(shards))
        if rank == 0:
            (out / f"{case}.losses.json").write_text(json.dumps({"plain": plain, "recorded": recorded, "warnings": said, "left_over": left_over}))
    dist.destroy_process_group()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (f"{directory}/store", out, sys.argv[2:] or [*FAULTS, *CASES]), nprocs=2)
