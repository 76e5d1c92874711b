"""Records small runs whose steps are unusual, for tests/data/step_kinds.

    PYTHONPATH=python torchrun --nproc-per-node 2 tests/tools/record_step_kinds.py KIND OUT
    python tests/tools/record_step_kinds.py strip OUT TO

closure        optimizer.step(closure): forward and backward run within Optimizer.step, as in Lightning
head           the head's weight is gathered and used by the loss, its forward is not run, as in TRL
accumulate     two microbatches, both with gradient synchronization
two_forwards   the losses of two forwards are added; one backward
teacher        a forward without gradients before the one with gradients
evaluate       two forwards without gradients after the second recorded step
skipped        no optimizer step in the second recorded step, as after a gradient scaler's overflow

`strip` keeps of a recording what the tests read: rank 0, without flows and without arguments that nothing reads.
"""
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

D, V, WARMUP, STEPS = 8, 32, 2, 4
KEPT = ("Input Dims", "Input type", "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name", "Process Group Ranks",
        "Process Group Description")


def record(kind, out):
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.distributed.fsdp import fully_shard

    import shardlens

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(V, D)
            self.layers = nn.ModuleList(Block() for _ in range(2))
            self.head = nn.Linear(D, V, bias=False)

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return x if kind == "head" else self.head(x)

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    for layer in model.layers:
        fully_shard(layer)
    if kind == "head":
        fully_shard(model.head, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    def forward():
        x = torch.randint(0, V, (2, 8))
        y = model(x)
        if kind == "head":
            y = y @ model.head.weight.full_tensor().T
        return F.cross_entropy(y.flatten(0, 1), x.flatten())

    def closure():
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        return loss

    def step(unusual):
        if kind == "closure":
            return optimizer.step(closure)
        optimizer.zero_grad()
        if kind == "accumulate":
            forward().backward()
        if kind == "teacher":
            with torch.no_grad():
                forward()
        loss = forward() + forward() if kind == "two_forwards" else forward()
        loss.backward()
        if not (kind == "skipped" and unusual):
            optimizer.step()
        if kind == "evaluate" and unusual:
            model.eval()
            with torch.no_grad():
                forward()
                forward()
            model.train()
        return loss

    with shardlens.record(out, model=model, optimizer=optimizer, warmup=WARMUP, steps=STEPS) as rec:
        for i in range(WARMUP + STEPS):
            rec.step(step(i == WARMUP + 1))
    dist.destroy_process_group()


def strip(source, target):
    source, target = Path(source), Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for name in ("plan.json", "model.json", "run.json"):
        shutil.copyfile(source / name, target / name)
    with gzip.open(source / "rank0.pt.trace.json.gz", "rt") as file:
        trace = json.load(file)
    events = []
    for event in trace["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            continue
        if event.get("cat") in ("cpu_op", "user_annotation"):
            event["args"] = {key: value for key, value in event.get("args", {}).items() if key in KEPT}
        events.append(event)
    trace["traceEvents"] = events
    plain = target / "rank0.pt.trace.json"
    plain.write_text(json.dumps(trace, separators=(",", ":")))
    subprocess.run(["zstd", "-q", "-f", "-19", "--rm", plain], check=True)


if __name__ == "__main__":
    strip(*sys.argv[2:4]) if sys.argv[1] == "strip" else record(*sys.argv[1:3])
