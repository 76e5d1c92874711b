#!/usr/bin/env python3
"""Recorded programs on two Gloo ranks: what they measure, compared with what Shardlens predicts from their recordings.

    recorded_memory.py record DIR [CASE…]     writes DIR/<case>/ (run directories of shardlens.record) and DIR/<case>.measured.json: the peak memory
                                              of a step by PyTorch's MemTracker
    recorded_memory.py track DIR [CASE…]      writes only the latter
    recorded_memory.py time DIR [CASE…]       writes DIR/times.json: for each pair of cases that what-if compares, the second's step time divided by the
                                              first's, in one process whose steps alternate, so that what else runs on the machine slows both
    recorded_memory.py compare DIR            the predicted peak of each run, compared with the tracker's
    recorded_memory.py what-if DIR            each run predicted with the checkpoints, and with the batch, of another one, compared with that one

The cases are {fsdp2, fsdp1, ddp}[-checkpoint][-bf16], {fsdp2, fsdp2-checkpoint}-batch2 with twice the batch, fsdp2-checkpoint-pairs with two blocks in
each unit, ddp-adafactor and ddp-zero (ZeroRedundancyOptimizer).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = [f"{api}{checkpoint}{dtype}" for api in ("fsdp2", "fsdp1", "ddp") for checkpoint in ("", "-checkpoint") for dtype in ("", "-bf16")]
CASES += ["fsdp2-batch2", "fsdp2-checkpoint-batch2", "fsdp2-checkpoint-pairs", "ddp-adafactor", "ddp-zero"]
WARMUP, STEPS = 2, 4
RANKS = 2


def make_model(options):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            heads = (*x.shape[:2], x.shape[2] // 64, 64)
            q, k, v = (part.reshape(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(options.vocabulary, options.width)
            self.layers = nn.ModuleList(Block(options.width) for _ in range(options.layers))
            self.norm, self.head = nn.LayerNorm(options.width), nn.Linear(options.width, options.vocabulary, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    return Model(), Block


def shard(case, options):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model, block = make_model(options)
    bf16 = case.endswith("-bf16")
    if "-checkpoint" in case:
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
    if case.startswith("fsdp2"):
        policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if bf16 else {}
        layers = list(model.layers)
        for unit in zip(layers[::2], layers[1::2]) if case.endswith("-pairs") else layers:
            fully_shard(list(unit) if isinstance(unit, tuple) else unit, **policy)
        return fully_shard(model, **policy)
    if case.startswith("fsdp1"):
        precision = MixedPrecision(torch.bfloat16, torch.float32) if bf16 else None
        kinds = {type(layer) for layer in model.layers}
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy(kinds), mixed_precision=precision, use_orig_params=True, device_id=torch.device("cpu"))
    return torch.nn.parallel.DistributedDataParallel(model.to(torch.bfloat16) if bf16 else model)


def optimizer_of(case, parameters):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    if case.endswith("-adafactor"):
        return torch.optim.Adafactor(parameters)
    if case.endswith("-zero"):
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3, fused=True)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


class Program:
    def __init__(self, case, options):
        import torch
        from torch.nn import functional as F

        self.model = shard(case, options)
        self.optimizer = optimizer_of(case, self.model.parameters())
        batch = options.batch * (2 if case.endswith("-batch2") else 1)
        self.tokens = torch.randint(0, options.vocabulary, (batch, options.seq))
        self.loss = lambda: F.cross_entropy(self.model(self.tokens).flatten(0, 1).float(), self.tokens.flatten())

    def step(self):
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def tracked_peak(program):
    """The peak of the bytes of tensors in a steady step, and what they were."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Tracker(MemTracker):
        def _track_module_params_and_buffers(self, module, install_grad_hooks=True):
            # FSDP1's parameters are views in forward, which take no such hooks; they only tell gradients from other tensors.
            return super()._track_module_params_and_buffers(module, install_grad_hooks=False)

    import torch.distributed as dist
    from torch.utils._python_dispatch import _disable_current_modes

    reduce = dist.reduce_scatter_tensor

    def untracked(*args, **kwargs):
        with _disable_current_modes():  # Gloo copies what it reduces; no device does
            return reduce(*args, **kwargs)

    program.step()  # makes the optimizer's states
    tracker = Tracker()
    tracker.track_external(program.model, getattr(program.optimizer, "optim", program.optimizer), program.tokens)
    dist.reduce_scatter_tensor = untracked
    try:
        with tracker:
            program.step()
    finally:
        dist.reduce_scatter_tensor = reduce
    sums = {}
    for snapshot in tracker.get_tracker_snapshot("peak").values():
        for key, value in snapshot.items():
            sums[str(getattr(key, "value", key))] = sums.get(str(getattr(key, "value", key)), 0) + value
    return sums.pop("Total"), sums


def record(rank, store, directory, options):
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(ROOT / "python"))
    import shardlens

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    for case in options.cases or CASES:
        peak, parts = tracked_peak(Program(case, options))
        if rank == 0:
            (directory / f"{case}.measured.json").write_text(json.dumps({"peak": peak, "at_peak": parts}) + "\n")
            print(f"{case}: {peak / (1 << 20):.1f} MiB", flush=True)
        if options.what == "track":
            continue
        program = Program(case, options)
        with shardlens.record(directory / case, model=program.model, optimizer=program.optimizer, warmup=WARMUP, steps=STEPS, force=True) as recording:
            for _ in range(WARMUP + STEPS):
                recording.step(program.step())
        dist.barrier()
    dist.destroy_process_group()


def changes_of(case, options):
    """The changes that what-if predicts from the case: (the case that has the change, changed keys of the plan, further flags)."""
    api, *rest = case.split("-")
    checkpointed = "checkpoint" in rest
    yield "-".join([api, *(rest[1:] if checkpointed else ["checkpoint", *rest])]), {"activation_checkpointing": [] if checkpointed else ["layers.*"]}, []
    if rest[-1:] == ["batch2"]:
        yield "-".join([api, *rest[:-1]]), {}, ["--batch", str(options.batch)]
    else:
        yield f"{case}-batch2", {}, ["--batch", str(2 * options.batch)]


def alternate(rank, store, directory, options):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    path = directory / "times.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for case in options.cases or CASES:
        for other, _, _ in changes_of(case, options):
            if other not in CASES or f"{other} / {case}" in found:
                continue
            programs, times = [Program(each, options) for each in (case, other)], [[], []]
            for _ in range(WARMUP + options.repeats):
                for program, of in zip(programs, times):
                    dist.barrier()
                    began = time.perf_counter()
                    program.step()
                    dist.barrier()
                    of.append(time.perf_counter() - began)
            ratios = sorted(b / a for a, b in list(zip(*times))[WARMUP:])
            found[f"{other} / {case}"] = {"ratio": statistics.median(ratios), "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
                                          "ms": 1e3 * statistics.median(times[0][WARMUP:])}
            found[f"{case} / {other}"] = {"ratio": 1 / statistics.median(ratios), "quartiles": [1 / ratios[-1 - len(ratios) // 4], 1 / ratios[len(ratios) // 4]],
                                          "ms": 1e3 * statistics.median(times[1][WARMUP:])}
            if rank == 0:
                path.write_text(json.dumps(found, indent=1) + "\n")
                print(f"{other} / {case}: {found[f'{other} / {case}']}", flush=True)
    dist.destroy_process_group()


def in_processes(work, options):
    import torch.multiprocessing as mp

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    directory = Path(options.directory).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(work, (Path(scratch) / "store", directory, options), RANKS)


# --- Shardlens


def measured(options, case):
    path = Path(options.directory) / f"{case}.measured.json"
    return json.loads(path.read_text()) if path.exists() else None


def simulate(options, case, *arguments):
    """The prediction, or the reason why there is none."""
    command = [options.bin, "simulate", "--workload", str(Path(options.directory) / case), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def recorded_cases(options):
    return [case for case in options.cases or CASES if measured(options, case)]


def compare(options):
    errors = []
    for case in recorded_cases(options):
        truth, found = measured(options, case), simulate(options, case)
        if isinstance(found, str):
            print(f"{case}: {found}")
            continue
        error = found["peak_requested_bytes"] / truth["peak"] - 1
        errors.append(abs(error))
        print(f"{case:26} predicted {found['peak_requested_bytes'] / (1 << 20):7.1f} MiB, tracked {truth['peak'] / (1 << 20):7.1f} MiB, {100 * error:+5.1f} %")
        if options.parts:
            print("     ", {k: round(v / (1 << 20), 1) for k, v in found["memory"].items()}, "\n     ", {k: round(v / (1 << 20), 1) for k, v in truth["at_peak"].items() if v})
    print(f"{sum(error <= 0.05 for error in errors)} of {len(errors)} within 5 %, largest {100 * max(errors):.1f} %")


def what_if(options):
    path = Path(options.directory) / "times.json"
    times = json.loads(path.read_text()) if path.exists() else {}
    for case in recorded_cases(options):
        own = simulate(options, case)
        for other, keys, flags in changes_of(case, options):
            truth = measured(options, other)
            if truth is None:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                if keys:
                    plan = json.loads((Path(options.directory) / case / "plan.json").read_text())
                    (Path(scratch) / "plan.json").write_text(json.dumps({**plan, **keys}))
                    flags = ["--plan", str(Path(scratch) / "plan.json")]
                found = simulate(options, case, *flags)
            if isinstance(found, str):
                print(f"{case} as {other}: {found}")
                continue
            of = times.get(f"{other} / {case}")
            ran = f"{of['ratio']:.3f} ({of['quartiles'][0]:.3f} to {of['quartiles'][1]:.3f}) measured" if of else "not measured"
            mib = lambda size: f"{size / (1 << 20):.1f}"  # noqa: E731
            print(f"{case:24} as {other:24} time x {found['step_ns'] / own['step_ns']:.3f} predicted, {ran}; peak {mib(found['peak_requested_bytes'])} MiB predicted, "
                  f"{mib(truth['peak'])} tracked ({100 * (found['peak_requested_bytes'] / truth['peak'] - 1):+.1f} %)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "track", "time", "compare", "what-if"])
    parser.add_argument("directory")
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin/shardlens"))
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9, help="of time: steps of each program")
    parser.add_argument("--parts", action="store_true", help="also print the categories at the peak")
    options = parser.parse_args()
    if options.what in ("record", "track", "time"):
        in_processes(alternate if options.what == "time" else record, options)
    else:
        (compare if options.what == "compare" else what_if)(options)
