#!/usr/bin/env python3
"""Checkpoints in PyTorch: torch.distributed.checkpoint reads what `shardlens capture --save` writes, PyTorch continues the run, and Shardlens
reads what HuggingFaceStorageWriter writes.

    check_checkpoints.py --bin DIR      with a Python that has torch, safetensors and transformers; exit 77 without them
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import zlib

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing
    from safetensors import safe_open
    from safetensors.torch import load_file
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, TOKENS = ROOT / "tests/data/llama-tiny", ROOT / "tests/data/tokens.u16.bin"
RANKS, BATCH, SEQ = 2, 2, 32


def run(*command, code=0):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == code, f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr}"
    return done


def capture(binaries, out, *more, steps, ranks=RANKS):
    run(binaries / "shardlens", "capture", "--model", MODEL, "--tokens", TOKENS, "--out", out, "--nproc", ranks, "--batch", BATCH * RANKS // ranks,
        "--seq", SEQ, "--steps", steps, *more)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def latest(folder):
    return max(path for path in folder.iterdir() if path.suffix == "")


def check_checksums(checkpoint):
    """zlib's checksums and the safetensors library's shapes are those of the index."""
    index = json.loads((checkpoint / "checkpoint.json").read_text())
    pieces = 0
    for tensor in index["tensors"]:
        for piece in tensor["pieces"]:
            with safe_open(checkpoint / index["files"][piece["file"]]["name"], framework="pt") as file:
                part = file.get_tensor(tensor["name"])
            assert list(part.shape) == piece["shape"], tensor["name"]
            assert f"{zlib.crc32(part.contiguous().numpy().tobytes()):08x}" == piece["crc32"], tensor["name"]
            pieces += 1
    return pieces


def train_on(checkpoint, first, steps):
    """The losses of `steps` steps that PyTorch trains from a checkpoint, on the samples of all ranks."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL), attn_implementation="sdpa").float()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, weight_decay=0.01, fused=True)
    state = {name: parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        own = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter), "step": torch.zeros(())}
        optimizer.state[parameter] = own
        state |= {f"state.{name}.{key}": value for key, value in own.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(checkpoint)))
    tokens = torch.tensor(list(memoryview(TOKENS.read_bytes()).cast("H")), dtype=torch.long)
    samples = (len(tokens) - 1) // SEQ
    losses = {}
    for step in range(first, first + steps):
        rows = [(step * RANKS * BATCH + row) % samples * SEQ for row in range(RANKS * BATCH)]
        inputs = torch.stack([tokens[row:row + SEQ] for row in rows])
        targets = torch.stack([tokens[row + 1:row + 1 + SEQ] for row in rows])
        loss = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[step] = loss.item()
    return losses


def sharded_by_torch(rank, folder, weights):
    """A rank of two that writes DTensors: split along the first dimension, along the last, and whole."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = DeviceMesh("cpu", [0, 1])
    state = {}
    for number, (name, value) in enumerate(sorted(load_file(weights).items())):
        placement = [Shard(0), Shard(value.dim() - 1), Replicate()][number % 3]
        state[name] = distribute_tensor(value, mesh, [placement])
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(f"{folder}/torch", save_distributed=True))
    for value in state.values():
        value.zero_()
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(f"{folder}/ours"))
    torch.save({name: value.full_tensor() for name, value in state.items()}, f"{folder}/read{rank}.pt")
    dist.destroy_process_group()


def same(first, second):
    assert first.keys() == second.keys(), first.keys() ^ second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def check(binaries, folder):
    shardlens = binaries / "shardlens"
    whole = capture(binaries, folder / "whole", steps=6)
    capture(binaries, folder / "first", "--save", folder / "saved", steps=3)
    checkpoint = latest(folder / "saved")
    print(f"zlib's checksums of {check_checksums(checkpoint)} pieces are those of the index")

    losses = train_on(checkpoint, 3, 3)
    worst = max(abs(losses[step] - whole[step]) for step in losses)
    assert worst <= 1e-5, (losses, whole)
    print(f"PyTorch continues from the checkpoint: losses of 3 steps within {worst:.1e}")

    run(shardlens, "checkpoint", "merge", checkpoint, "--out", folder / "merged")
    weights = folder / "merged/model.safetensors"
    run(shardlens, "checkpoint", "convert", checkpoint, "--out", folder / "ours", "--world-size", 3)
    torch.multiprocessing.spawn(sharded_by_torch, (folder, weights), nprocs=2)
    for rank in range(2):
        same(torch.load(folder / f"read{rank}.pt"), load_file(weights))
    print("two ranks of PyTorch read the checkpoint into DTensors, bitwise")

    run(shardlens, "checkpoint", "verify", folder / "torch")
    run(shardlens, "checkpoint", "merge", folder / "torch", "--out", folder / "again")
    same(load_file(folder / "again/model.safetensors"), load_file(weights))
    print("HuggingFaceStorageWriter's shards are merged, bitwise")
    resumed = capture(binaries, folder / "resumed", "--resume", folder / "torch", steps=1)
    plain = capture(binaries, folder / "plain", "--resume", folder / "merged", steps=1)
    assert resumed == plain, (resumed, plain)
    print("a run resumes from them")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with shardlens and shardlens-worker")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        check(options.bin.resolve(), pathlib.Path(folder))


if __name__ == "__main__":
    main()
