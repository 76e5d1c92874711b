#!/usr/bin/env python3
"""Records runs of experts whose ranks get unequal numbers of rows, and compares what `simulate --workload` says of them with what the program did.

    expert_runs.py OUT [NAME…] [--torchtitan DIR] [--again]     $SHARDLENS_PROGRAM names the program; DIR: see torchtitan_program.py

hand-2           experts by hand over 2 ranks: 3 of 4 rows go to the first rank of the mesh axis `ep`
hand-4           likewise over 4, FSDP2 over efsdp 2
hand-one         likewise, and all rows go there
mixtral-…, qwen3-…   a program of expert_programs.py: torchtitan 0.2.2's MoE with its ExpertParallel

Each is recorded with shardlens.record into OUT/NAME/run, two steps to warm up and eight that are recorded. Of a step before it OUT/NAME/program.json has every collective that PyTorch issued, with
the bytes of each rank (RECORDED.md has the format). Compared are, on every rank, the bytes of the all-to-alls that `simulate --workload` names, and all collectives of forward and backward of the
simulated traces: kind, ranks, bytes, order. They must be equal. A table has how long the collectives of each rank wait for later ranks, predicted and measured, and the difference as a share of the
step; these need a quiet machine with a core for each rank. Exit code 1 if a collective differs.
"""
import argparse
import json
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import compare_collectives  # noqa: E402
from shardlens import program  # noqa: E402

WARMUP, STEPS = 2, 8
# Width, hidden width, experts of a rank, vocabulary, blocks, samples, tokens of a sample.
D, H, E, V, BLOCKS, BATCH, SEQ = 256, 1024, 2, 512, 2, 4, 128
# Ranks, and the share of its rows that a rank sends to the first rank of `ep`, in eighths.
BY_HAND = {"hand-2": (2, 6), "hand-4": (4, 6), "hand-one": (4, 8)}


def by_hand(eighths):
    """The sharded model, the groups of its mesh, and its loss."""
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_to_all_single
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    class Experts(nn.Module):
        """Whole rows go to the ranks with their experts; how many go where is fixed."""

        def __init__(self, ep):
            super().__init__()
            self.group = ep.get_group()
            self.w1, self.w2 = (nn.Parameter(distribute_tensor(torch.randn(2 * E, *shape) / 16, ep, [Shard(0)])) for shape in ((D, H), (H, D)))

        def forward(self, x):
            rows = x.flatten(0, 1).contiguous()
            first = len(rows) * eighths // 8
            sent = torch.tensor([first, len(rows) - first])
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self.group)
            sent, received = sent.tolist(), received.tolist()
            came = all_to_all_single(rows.new_empty(sum(received), D), rows, received, sent, group=self.group)
            w1, w2 = (w.to_local() if isinstance(w, DTensor) else w for w in (self.w1, self.w2))
            parts = zip(came.tensor_split(E), w1.unbind(), w2.unbind())
            done = torch.cat([F.gelu(part @ up) @ down for part, up, down in parts])
            return all_to_all_single(torch.empty_like(rows), done, sent, received, group=self.group).view(x.shape)

    class Block(nn.Module):
        def __init__(self, ep):
            super().__init__()
            self.norm, self.mix, self.experts = nn.LayerNorm(D), nn.Linear(D, D), Experts(ep)

        def forward(self, x):
            x = self.norm(x)
            return x + self.experts(torch.tanh(self.mix(x)))

    class Model(nn.Module):
        def __init__(self, ep):
            super().__init__()
            self.embed, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V, bias=False)
            self.layers = nn.ModuleList(Block(ep) for _ in range(BLOCKS))

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("efsdp", "ep"))
    whole = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    torch.manual_seed(0)  # the same values on all ranks
    model = Model(mesh["ep"])
    for layer in model.layers:
        fully_shard(layer.experts, mesh=mesh["efsdp"])
        fully_shard(layer, mesh=whole)
    fully_shard(model, mesh=whole)
    torch.manual_seed(dist.get_rank())

    def loss():
        tokens = torch.randint(0, V, (BATCH, SEQ))
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return model, {"shard": whole.get_group(), "expert_shard": mesh.get_group("efsdp"), "expert": mesh.get_group("ep")}, loss


def of_torchtitan(row):
    """Likewise, of a program of expert_programs.py."""
    import expert_programs
    import tensor_models
    import torch
    import torch.nn.functional as F

    config = tensor_models.config_of(row)
    meshes = expert_programs.Meshes(row["mesh"])
    model, forward, vocabulary = tensor_models.make(row)
    expert_programs.use_experts(model, row, config)
    expert_programs.divide(model, row, config, meshes)
    positions = torch.arange(row["seq"]).unsqueeze(0)

    def loss():
        tokens = torch.randint(0, vocabulary, (row["batch"], row["seq"]))
        return F.cross_entropy(forward(tokens, positions).flatten(0, 1).float(), tokens.flatten())

    return model, meshes.groups, loss


def work(rank, world, store, name, row, out):
    import torch
    import torch.distributed as dist

    import collective_log
    import shardlens

    warnings.simplefilter("ignore")  # of the profiler
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    model, groups, loss_of = of_torchtitan(row) if row else by_hand(BY_HAND[name][1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # DTensors of several meshes
    log = collective_log.CollectiveLog(model, groups)

    def step():
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step()
    with log:
        with log.during("forward"):
            loss = loss_of()
        with log.during("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    log.modules.restore()
    ranks = [None] * world
    dist.all_gather_object(ranks, {"rows": log.take(), "groups": {axis: dist.get_process_group_ranks(group) for axis, group in groups.items()}})
    if rank == 0:
        of_groups = {axis: sorted({tuple(each["groups"][axis]) for each in ranks}) for axis in groups}
        text = collective_log.document({"program": name, "groups": of_groups}, collective_log.merged([each["rows"] for each in ranks]))
        (out / "program.json").write_text(text)
    with shardlens.record(out / "run", model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS, force=True) as rec:
        for _ in range(WARMUP + STEPS):
            rec.step(step())
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may still run when Python is torn down, which aborts the process


def ranks_of(row):
    mesh = row["mesh"]
    return mesh.get("replicate", 1) * mesh.get("shard", 1) * mesh.get("tensor", 1)


def record(name, options, out):
    import torch.multiprocessing as mp

    row = None
    if name not in BY_HAND:
        import expert_programs

        expert_programs.prepare(options.torchtitan)
        row = expert_programs.programs()[name]
    world = ranks_of(row) if row else BY_HAND[name][0]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(work, (world, os.path.join(directory, "store"), name, row, out), nprocs=world, start_method="fork")


def differences(issued, run):
    """Sentences on collectives that are not those that PyTorch issued."""
    answer = program.ask(["simulate", "--workload", run])
    with tempfile.TemporaryDirectory() as scratch:
        program.ask(["simulate", "--workload", run, "--out", Path(scratch) / "out"])
        for rank in range(compare_collectives.world_of(issued)):
            wanted = compare_collectives.expected(issued, rank)
            exchanged = [row[2:4] for row in wanted if row[0] == "all_to_all"]
            if "ranks" not in answer:
                yield "simulate says that all ranks are alike"
                return
            said = [(each["sent_bytes"], each["received_bytes"]) for each in answer["ranks"][rank]["all_to_alls"]]
            if said != exchanged:
                yield f"rank {rank}: all-to-alls of {said} bytes; PyTorch {exchanged}"
            different = compare_collectives.first_difference(wanted, compare_collectives.simulated(Path(scratch), rank))
            if different:
                yield f"rank {rank}, {different[1]}"


def judged(name, out):
    """Prints the comparison. Returns whether a collective differs."""
    issued = json.loads((out / "program.json").read_text())
    run = out / "run"
    wrong = list(differences(issued, run))
    print(f"\n{name}: {len(issued['collectives'])} collectives of a step, {'equal to PyTorch' if not wrong else 'different'}")
    for sentence in wrong:
        print(f"  {sentence}")
    answer = program.ask(["simulate", "--workload", run])
    baseline = answer["baseline"]
    step = baseline["measured_step_ns"]
    print(f"  step {1e-6 * step:.1f} ms measured, {1e-6 * baseline['simulated_step_ns']:.1f} ms simulated ({100 * baseline['error']:+.1f} %)")
    for row in answer.get("ranks", []):
        if row["measured_peer_wait_ns"] is not None:
            off = (row["peer_wait_ns"] - row["measured_peer_wait_ns"]) / step
            print(f"  rank {row['rank']} waits {1e-6 * row['peer_wait_ns']:7.2f} ms predicted, {1e-6 * row['measured_peer_wait_ns']:7.2f} ms measured: {100 * off:+.1f} % of the step")
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--torchtitan", type=Path, metavar="DIR")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    failed = []
    for name in options.names or BY_HAND:
        out = options.out / name
        if options.again or not (out / "program.json").exists():
            record(name, options, out)
        if judged(name, out):
            failed.append(name)
    print(f"\n{len(options.names or BY_HAND)} programs, different: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
