#!/usr/bin/env python3
"""Records one training program on two Gloo ranks in the forms in which people write it: which unit's communication ran, and was exposed.

Checked are the units of all communication, and the time in which nothing else ran.

    rewritten_programs.py OUT [NAME…] [--bin DIR]     run it with build/test-python

The programs are FORMS: PyTorch's FSDP2 eager, compiled per block and compiled whole, and a SimpleFSDP-like one, in which a property of each module
redistributes a DTensor, eager, compiled whole, and compiled with the gathers of each block in one bucket. All train the same parameters.

For each unit the table has the bytes of gathers in forward and of reductions. They must be those of eager FSDP2 in every form; exit code 1 if
not, or if a collective of a form has no unit. Gathers in backward are shown only: FSDP2 frees the root or not, and a compiler gathers what it needs again.
Then come the exposed times, which differ, with the cause that `analyze` names for most of it: this is what a rewriting changes.
OUT/NAME is the run directory. --fixture writes the traces small, without what no analysis reads.
"""
import argparse
import collections
import gzip
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
FORMS = ("fsdp2", "fsdp2-block", "fsdp2-whole", "simple", "simple-compiled", "simple-buckets")
WIDTH, HIDDEN, LAYERS, VOCABULARY, BATCH, SEQ = 128, 384, 3, 512, 2, 32
WARMUP, STEPS, RANKS = 3, 2, 2


def make_model():
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.w1, self.w2, self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)

        def forward(self, x):
            y = self.norm1(x)
            q, k, v = (linear(y).unflatten(-1, (4, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
            y = self.norm2(x)
            return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    torch.manual_seed(0)
    return Model()


def blocks_of(together):
    """Numbers of the blocks that are in one unit or bucket."""
    return [range(first, min(first + together, LAYERS)) for first in range(0, LAYERS, together)]


def fsdp2(model, resharded=True, together=1):
    from torch.distributed.fsdp import fully_shard

    for blocks in blocks_of(together):
        layers = [model.layers[i] for i in blocks]
        fully_shard(layers if together > 1 else layers[0], reshard_after_forward=resharded)
    return fully_shard(model, reshard_after_forward=False)


def gathered_again():
    """Contexts of a checkpoint around a gather, which runs again in backward."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts(lambda context, function, *args, **kwargs: CheckpointPolicy.MUST_RECOMPUTE)


def simple(model, resharded=False):
    """Each parameter becomes a DTensor, and a property of its name: reading it gathers, and autograd reduces. `resharded`, which needs a compiler:
    it is gathered again in backward."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.utils.checkpoint import checkpoint

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))

    def whole(parameter):
        return parameter.redistribute(placements=(Replicate(),)).to_local(grad_placements=(Partial("avg"),))

    def gathered(name):
        if resharded:
            return property(lambda self: checkpoint(whole, self._parameters[name], use_reentrant=False, context_fn=gathered_again))
        return property(lambda self: whole(self._parameters[name]))

    for module in list(model.modules()):
        own = dict(module.named_parameters(recurse=False))
        for name, parameter in own.items():
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, (Shard(0),))))
        if own:
            module.__class__ = type(f"SimpleFSDP{type(module).__name__}", (type(module),), {name: gathered(name) for name in own})
    return model


def bucketing_backend(together=1):
    """One gather and one reduction for each block, or for several together, by the pass that torchtitan uses; nothing is fused, so that it compiles
    soon."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing

    buckets_of = [[f"layers.{i}" for i in blocks] for blocks in blocks_of(together)]
    plan = ["embed", *(names if together > 1 else names[0] for names in buckets_of), ["norm", "head"]]

    def buckets(graph, example_inputs):
        return manual_overlap_bucketing(graph, module_bucket_plans=plan, insert_overlap_deps=False)

    return aot_autograd(fw_compiler=buckets, bw_compiler=buckets, keep_inference_input_mutations=True)


def program(form, resharded=None, together=1):
    """`resharded`: whether parameters are freed after forward; None: as the form does by default. `together`: blocks in one unit or bucket."""
    model = make_model()
    if form == "fsdp2-block":
        for layer in model.layers:
            layer.compile()
    if form == "fsdp2-whole":
        model.compile()
    if form.startswith("fsdp2"):
        return fsdp2(model, resharded is not False, together)
    model = simple(model, bool(resharded))
    if form == "simple-buckets":
        model.compile(fullgraph=True, backend=bucketing_backend(together))
    elif form != "simple":
        model.compile(fullgraph=True)
    return model


def train(rank, form, store, out):
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    import shardlens

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    model = program(form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    with shardlens.record(out, model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS, force=True) as recording:
        for _ in range(WARMUP + STEPS):
            tokens = torch.randint(0, VOCABULARY, (BATCH, SEQ), generator=generator)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            recording.step(loss)
    Path(out, f"rank{rank}.losses.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


def rank_of(rank, form, store, out):
    try:
        train(rank, form, store, out)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the other rank waits in a collective


def run(form, out):
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-B", __file__, str(out), form, "--store", str(Path(directory) / "store")]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(RANKS)]
        codes = [rank.wait(timeout=900) for rank in ranks]
    if any(codes):
        raise SystemExit(f"{form}: the ranks ended with {codes}")


def analyzed(binary, directory):
    done = subprocess.run([str(binary / "shardlens"), "analyze", str(directory), "--by", "span", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def moved(rank):
    """{(kind, section): {unit: bytes}} of a step, and the number of collectives without a unit."""
    out, unowned = collections.defaultdict(collections.Counter), 0
    for span in rank["spans"]:
        if span["purpose"] not in ("gather_parameters", "reduce_gradients"):
            unowned += span["kind"] in ("all_gather", "reduce_scatter")
            continue
        out[span["kind"], span["section"]][span["fqn"]] += span["bytes"] / STEPS
    return out, unowned


def shrink(directory):
    """A run as a fixture: only what an analysis reads."""
    for path in (*directory.glob("*.losses.json"), *directory.glob(".shardlens*"), *directory.glob("metrics.jsonl")):
        path.unlink()
    about = json.loads((directory / "run.json").read_text())
    about["command"] = ["tests/tools/rewritten_programs.py", directory.name]
    (directory / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    for path in directory.glob("rank*.pt.trace.json.gz"):
        trace = {**json.loads(gzip.decompress(path.read_bytes())), "traceName": "trace.json"}
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ph") in ("X", "M") and event.get("cat") != "python_function"]
        for event in trace["traceEvents"]:
            for key in ("Input Strides", "Concrete Inputs", "Record function id", "Ev Idx", "Collective name", "Seq"):
                event.get("args", {}).pop(key, None)
        with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
            packed.write(json.dumps(trace, separators=(",", ":")).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--fixture", action="store_true")
    parser.add_argument("--table", action="store_true", help="runs no program again")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    options = parser.parse_args()
    if options.rank is not None:
        rank_of(options.rank, options.names[0], options.store, options.out)
        return 0
    reference, faults = None, 0
    for form in options.names or FORMS:
        directory = options.out / form
        if not options.table:
            directory.mkdir(parents=True, exist_ok=True)
            run(form, directory)
        if options.fixture:
            shrink(directory)
        analysis = analyzed(options.bin, directory)
        for rank in analysis["ranks"]:
            bytes_of, unowned = moved(rank)
            compared = {key: bytes_of[key] for key in (("all_gather", "forward"), ("reduce_scatter", "backward"))}
            reference = reference or compared
            same = compared == reference
            faults += unowned + (not same)
            exposed = collections.Counter()
            for span in rank["spans"]:
                if span["purpose"] in ("gather_parameters", "reduce_gradients"):
                    exposed[span["cause"]] += span["exposed_ns"] / STEPS / 1e6
            causes = ", ".join(f"{cause} {time:.2f} ms" for cause, time in exposed.most_common(3))
            count = sum(span["kind"] in ("all_gather", "reduce_scatter") for span in rank["spans"]) / STEPS
            print(f"{form:16} rank {rank['rank']}: {count:g} collectives a step, {unowned} without a unit, bytes by unit {'equal' if same else 'DIFFERENT'}; exposed: {causes}")
            if not same:
                print("  ", {key: dict(units) for key, units in compared.items()})
        sys.stdout.flush()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
