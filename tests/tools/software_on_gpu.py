#!/usr/bin/env python3
"""Runs one training step of PyTorch FSDP2 on one GPU under different software: eager, compiled blocks, a CUDA graph, float8.

    software_on_gpu.py --model DIR --tokens FILE --software NAME [--steps N] [--batch B] [--seq T] [--record DIR] [--memory FILE]

The model, tokens and precision are those of fsdp2_on_gpu.py, over one rank. NAME is one of
    eager         as fsdp2_on_gpu.py
    compile       each block compiled in place before fully_shard, which keeps FSDP2's hooks outside of what is compiled
    graph         forward and backward captured as one CUDA graph after warm-up steps, then replayed; the optimizer runs eagerly
    float8        torchao's float8 training with tensorwise scales, eager
    float8_compile  the same with compiled blocks
--record: shardlens.record's run of three steps. With `graph`, the first one recorded is the last one before the capture, and two are replays.
--memory: a snapshot of the allocator's history of one step, as torch.cuda.memory._dump_snapshot writes it.
Prints {"step_ms": […], "loss": […], "host_ms": […]} as its last line; host_ms is the time until everything of a step was issued.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fsdp2_on_gpu as program  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

SOFTWARE = ("eager", "compile", "graph", "float8", "float8_compile")
WARMUP = 4


def sharded(arguments):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = program.Llama(json.loads((arguments.model / "config.json").read_text()))
    if arguments.software.startswith("float8"):
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(model, module_filter_fn=lambda module, fqn: isinstance(module, torch.nn.Linear) and "lm_head" not in fqn)
    if arguments.software.endswith("compile"):
        for layer in model.layers:
            layer.compile(fullgraph=True, dynamic=False)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = dist.init_device_mesh("cuda", (1,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Step:
    """Forward, backward and optimizer on a batch that is copied into the same memory each time."""

    def __init__(self, model, optimizer, source):
        self.model, self.optimizer, self.source = model, optimizer, source
        self.tokens = next(source).cuda()
        self.loss = None
        self.graph = None

    def gradients(self):
        logits = self.model(self.tokens[:, :-1].contiguous())
        self.loss = F.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
        self.loss.backward()

    def capture(self):
        """Captures gradients(). The gradients are those of the graph from then on, so they are never set to none."""
        self.optimizer.zero_grad()
        self.loss = None  # it keeps nodes of autograd alive
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog thread queries events during a capture, which only this mode allows.
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.gradients()
        self.graph = graph

    def run(self):
        """Milliseconds of the step, and those in which the host issued it."""
        begin = time.perf_counter()
        self.tokens.copy_(next(self.source))
        if self.graph is not None:
            self.graph.replay()
        else:
            self.optimizer.zero_grad()
            self.gradients()
        self.optimizer.step()
        issued = time.perf_counter()
        loss = self.loss.item()
        return 1e3 * (time.perf_counter() - begin), 1e3 * (issued - begin), loss


def recorded(step, arguments, model, optimizer):
    import shardlens

    with shardlens.record(arguments.record, model=model, optimizer=optimizer, warmup=2, steps=3) as recorder:
        for number in range(5):
            if arguments.software == "graph" and number == 3:
                step.capture()
            recorder.step(step.run()[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=pathlib.Path, required=True)
    parser.add_argument("--software", choices=SOFTWARE, default="eager")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--memory", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.cuda.set_device(0)
    program.start(1)
    # What runs on the default stream cannot be captured, so the steps before the capture run on the stream of the capture, too.
    with torch.cuda.stream(torch.cuda.Stream()) if arguments.software == "graph" else contextlib.nullcontext():
        run(arguments)
    dist.destroy_process_group()


def run(arguments):
    model = sharded(arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    step = Step(model, optimizer, program.batches(arguments.tokens, arguments.seq, arguments.batch, 1))
    begin = time.perf_counter()
    rows = [step.run() for _ in range(WARMUP)]
    result = {"software": arguments.software, "warmup_s": time.perf_counter() - begin}
    if arguments.memory:
        torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
        rows.append(step.run())
        torch.cuda.memory._dump_snapshot(str(arguments.memory))
        torch.cuda.memory._record_memory_history(enabled=None)
    if arguments.record:
        recorded(step, arguments, model, optimizer)
    if arguments.software == "graph" and step.graph is None:
        step.capture()
    torch.cuda.reset_peak_memory_stats()
    rows = [step.run() for _ in range(arguments.steps)]
    result |= {"step_ms": [row[0] for row in rows], "host_ms": [row[1] for row in rows], "loss": [row[2] for row in rows],
               "median_ms": statistics.median(row[0] for row in rows), "peak_bytes": torch.cuda.max_memory_allocated()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
