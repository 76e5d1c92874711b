#!/usr/bin/env python3
"""Generates device traces of DDP in which it is known whether a bucket closes late, because it was made so.

    generate_buckets.py SEED DIR     writes DIR/rank0.json and DIR/truth.json

Buckets of three to six gradients, complete one after the other. In a late bucket, the last gradient is small and comes from a layer with a
long backward (a first convolution at full resolution), during which nothing is communicated. Four kinds only look like it: the last gradient
is most of the bucket (an embedding), an earlier bucket is being reduced meanwhile, the bucket is late in one step of all, or its all-reduce
is hidden under the rest of backward.

truth.json as generate_causes.py writes it, without causes.
"""
import json
import random
import sys
from pathlib import Path

from generate_causes import BACKWARD, COMPUTE, MAIN, REDUCE, US, Machine

KINDS = ("late", "late", "even", "large", "busy", "once", "hidden")


class Buckets:
    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.settings = dict(syncs=False, sizes=True, ranks=1, lossy=0)
        self.m = Machine(rng, self.settings)
        self.kind = rng.choice(KINDS)
        self.count = rng.randint(2, 4)
        # The last bucket is exposed; one before it is hidden under what follows.
        self.odd = 0 if self.kind == "hidden" else self.count - 1
        self.steps = rng.randint(3, 4)
        self.unit = rng.randint(100, 300) * US
        self.gradients = [rng.randint(3, 6) for _ in range(self.count)]

    def node(self, length, copy):
        """The backward of an operator, and the copy of its gradient into the bucket; the range to call the all-reduce in."""
        m = self.m
        start = m.host
        m.launch("void cutlass_dgrad", COMPUTE, length)
        m.row("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", 1, BACKWARD, start, m.host)
        m.host += US
        begin = m.host
        m.host += US
        copying = m.host
        m.launch("void at::native::vectorized_elementwise_kernel", COMPUTE, copy)
        m.row("cpu_op", "torch::distributed::reducer::mul_out", 1, BACKWARD, copying, m.host)
        m.host += US
        return begin

    def close(self, begin):
        self.m.row("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1, BACKWARD, begin, self.m.host)
        self.m.host += US

    def bucket(self, index, number):
        m, rng, odd = self.m, self.rng, index == self.odd
        kind = self.kind if odd else "even"
        late = kind in ("late", "large", "busy", "hidden") or (kind == "once" and number == 1)
        for k in range(self.gradients[index]):
            last = k + 1 == self.gradients[index]
            length = int(self.unit * (rng.uniform(9, 12) if late and last else rng.uniform(0.8, 1.2)))
            copy = (2 if late and last and kind != "large" else 400 if kind == "large" and last else 10) * US
            begin = self.node(length, copy)
            if last:
                called = m.host
                m.wait(REDUCE, COMPUTE)
                # The one before "busy" is reduced for as long as this one waits.
                long = self.kind == "busy" and index + 1 == self.odd
                m.collective("all_reduce", REDUCE, int(self.unit * (14 if long else rng.uniform(1.5, 2.5))), "dp", 2, 1_000_000)
                m.row("cpu_op", "c10d::allreduce_", 1, BACKWARD, called, m.host)
            self.close(begin)

    def step(self, number):
        m, begin = self.m, self.m.host
        m.thread = MAIN
        start = m.host
        for _ in range(3):
            m.launch("void cutlass_fprop", COMPUTE, self.unit)
        m.row("user_annotation", "DistributedDataParallel.forward", 1, MAIN, start, m.host)
        m.host += US
        m.thread = BACKWARD
        for index in range(self.count):
            self.bucket(index, number)
        m.thread = MAIN
        m.wait(COMPUTE, REDUCE)
        start = m.host
        m.launch("multi_tensor_apply_kernel", COMPUTE, self.unit)
        m.row("user_annotation", "Optimizer.step#SGD.step", 1, MAIN, start, m.host)
        m.host = max(m.host, m.free[COMPUTE] - self.unit // 2)
        m.row("user_annotation", f"ProfilerStep#{number}", 1, MAIN, begin, m.host)
        m.host += 2 * US

    def run(self, directory):
        for number in range(self.steps):
            self.step(number)
        out = [dict(ph="X", cat=r["cat"], name=r["name"], pid=r["pid"], tid=r["tid"], ts=r["start"] / 1000, dur=(r["end"] - r["start"]) / 1000,
                    args=r["args"]) for r in self.m.rows]
        info = dict(backend="nccl", rank=0, world_size=2, pg_config=[dict(pg_name="dp", pg_desc="mesh_dp", pg_size=2, ranks=[0, 1])])
        (directory / "rank0.json").write_text(json.dumps(dict(schemaVersion=1, baseTimeNanoseconds=0, traceEvents=out, distributedInfo=info)))
        truth = dict(causes=[], waste=[("late_bucket", f"bucket {self.odd}")] if self.kind == "late" else [], settings=dict(kind=self.kind), lost=False)
        (directory / "truth.json").write_text(json.dumps(truth))
        return truth


def generate(seed, directory):
    return Buckets(seed).run(Path(directory))


if __name__ == "__main__":
    print(json.dumps(generate(int(sys.argv[1]), sys.argv[2])["settings"]))
