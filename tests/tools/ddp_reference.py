#!/usr/bin/env python3
"""Records the buckets of PyTorch's DistributedDataParallel on two Gloo processes.

    ddp_reference.py --out tests/data/ddp_buckets_large.json

The model is a chain of torch.nn.Linear(width[i], width[i + 1]) of at least 60 MB. The file has the layout of
ddp_buckets.json: models as [[name, bytes], ...]; per run and iteration the buckets in launch order as
[bytes, [parameter indices in bucket order]], `ready`, the order in which gradients became ready, `launch`, how many gradients
were ready when each bucket was launched, and the numbers of collectives (from the profiler).
"""
import argparse, json, warnings
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.profiler import ProfilerActivity, profile

WIDTHS = [96, 1024, 640, 64, 1536, 1536, 200, 3072, 2048, 48, 2560, 2048, 8]
SETTINGS = [dict(**cap, **flags) for cap in ({}, {"bucket_cap_mb": 0.25}, {"bucket_cap_mb": 1})
            for flags in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True})]


def one(kwargs):
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*(nn.Linear(a, b) for a, b in zip(WIDTHS, WIDTHS[1:]))), **kwargs)
    parameters = list(model.module.parameters())
    index = {id(p): i for i, p in enumerate(parameters)}
    seen = {}

    def hook(_, bucket):
        buffer = bucket.buffer()
        seen["buckets"].append([buffer.numel() * buffer.element_size(), [index[id(p)] for p in bucket.parameters()]])
        seen["launch"].append(len(seen["ready"]))
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, hook)
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda p: seen["ready"].append(index[id(p)]))
    run = {}
    for iteration in (1, 2, 3):
        seen.update(buckets=[], ready=[], launch=[])
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            model(torch.ones(2, WIDTHS[0])).sum().backward()
        for p in parameters:
            p.grad = None
        counts = {e.key: e.count for e in profiler.key_averages()}
        run[f"it{iteration}"] = dict(seen, all_reduce=counts.get("c10d::allreduce_", 0), broadcast=counts.get("c10d::broadcast_", 0))
    return run, [[n, p.numel() * p.element_size()] for n, p in model.module.named_parameters()]


def work(rank, out):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29671", rank=rank, world_size=2)
    runs = []
    for kwargs in SETTINGS:
        run, names = one(kwargs)
        runs.append(dict(model="chain", kwargs=kwargs, **run))
    if rank == 0:
        assert sum(size for _, size in names) >= 60e6
        lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
        head = json.dumps(dict(torch=torch.__version__.split("+")[0], widths=WIDTHS, models={"chain": names}), separators=(",", ":"))
        open(out, "w").write(head[:-1] + ',"runs":[\n' + lines + "\n]}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    mp.spawn(work, args=(parser.parse_args().out,), nprocs=2)
