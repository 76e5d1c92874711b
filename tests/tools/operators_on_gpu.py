#!/usr/bin/env python3
"""Measures single operators on one GPU and writes their times as a CSV, to compare the simulator's constants of a GPU with.

    operators_on_gpu.py [--out FILE] [--seconds 120]

Each operator is timed by triton.testing.do_bench, which empties the L2 cache between runs: the median of runs that last 40 ms together, and
the 20th and 80th percentile. Columns: operator, dtype, shape, bytes (read and written once), flops, us, us_20, us_80. Operators:
    matmul, matmul_float8 (tensorwise), matmul_float8_rowwise     shape MxKxN, [M,K]·[K,N]
    attention, attention_backward                                 shape BxHxTxD, causal, bf16; backward without the forward
    rms_norm, rotary, silu_multiply, add, cross_entropy           shape rows x columns; with the suffix _compiled: by torch.compile, one kernel
                                                                  where inductor fuses it; short ones have the host's time of a call
    cast, amax, copy                                              shape of elements
    launch, module_call, graph_launch                             host time of one empty kernel, of one nn.Linear call, of a graph of 100 kernels
Rows that fail say so in their last column, `error`. Stops after --seconds.
"""
import argparse
import csv
import sys
import time

import torch
import torch.nn.functional as F
from triton.testing import do_bench

E4M3 = torch.float8_e4m3fn


def matmuls():
    for m, k, n in [(2048, 2048, 2048), (2048, 2048, 5632), (2048, 5632, 2048), (2048, 2048, 512), (4096, 2048, 5632), (16384, 2048, 5632),
                    (2048, 4096, 4096), (2048, 4096, 14336), (2048, 14336, 4096), (8192, 4096, 4096), (8192, 4096, 1024), (8192, 4096, 14336),
                    (8192, 14336, 4096), (16384, 4096, 14336), (4096, 8192, 8192), (4096, 8192, 28672), (8192, 8192, 8192), (2048, 2048, 32000),
                    (8192, 4096, 128256), (128, 4096, 4096), (512, 4096, 4096), (1000, 4096, 4096), (4096, 4096, 8192), (4096, 1024, 4096)]:
        yield m, k, n


def cases():
    """(operator, dtype, shape, bytes, flops, function that makes the timed function)"""
    for m, k, n in matmuls():
        def plain(m=m, k=k, n=n):
            a, b = torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
            return lambda: a @ b.t()

        def scaled(rowwise, m=m, k=k, n=n):
            a, b = torch.randn(m, k, device="cuda").to(E4M3), torch.randn(n, k, device="cuda").to(E4M3)
            one = torch.ones((), device="cuda")
            scales = (torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")) if rowwise else (one, one)
            return lambda: torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16, use_fast_accum=True)

        yield "matmul", "bf16", f"{m}x{k}x{n}", 2 * (m * k + k * n + m * n), 2 * m * k * n, plain
        yield "matmul_float8", "e4m3", f"{m}x{k}x{n}", m * k + k * n + 2 * m * n, 2 * m * k * n, lambda s=scaled: s(False)
        yield "matmul_float8_rowwise", "e4m3", f"{m}x{k}x{n}", m * k + k * n + 2 * m * n, 2 * m * k * n, lambda s=scaled: s(True)
    for b, h, t, d in [(1, 16, 2048, 128), (2, 16, 2048, 128), (1, 32, 8192, 128), (2, 32, 4096, 128), (1, 32, 2048, 64), (8, 32, 1024, 128),
                       (1, 64, 8192, 128), (1, 8, 32768, 128)]:
        def attention(backward, b=b, h=h, t=t, d=d):
            q, k, v = (torch.randn(b, h, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
            if not backward:
                return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            gradient = torch.randn_like(out)
            return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        flops = 2 * b * h * t * t * d  # half of the full matrix, two products
        yield "attention", "bf16", f"{b}x{h}x{t}x{d}", 8 * b * h * t * d, flops, lambda f=attention: f(False)
        yield "attention_backward", "bf16", f"{b}x{h}x{t}x{d}", 16 * b * h * t * d, flops * 5 // 2, lambda f=attention: f(True)
    yield from elementwise()
    yield from host()


def rms_norm(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def silu_multiply(a, b):
    return F.silu(a) * b


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float(), targets)


def elementwise():
    for rows, columns in [(2048, 2048), (8192, 2048), (8192, 4096), (16384, 4096), (16384, 8192)]:
        def pair(function, compiled, rows=rows, columns=columns, second=None):
            torch._dynamo.reset()
            x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
            y = torch.randn(*(second or (rows, columns)), device="cuda", dtype=torch.bfloat16)
            called = torch.compile(function, dynamic=False) if compiled else function
            return lambda: called(x, y)

        def turned(compiled, rows=rows, columns=columns):
            torch._dynamo.reset()
            x = torch.randn(1, columns // 128, rows, 128, device="cuda", dtype=torch.bfloat16)
            cos, sin = torch.randn(rows, 128, device="cuda", dtype=torch.bfloat16), torch.randn(rows, 128, device="cuda", dtype=torch.bfloat16)
            called = torch.compile(rotary, dynamic=False) if compiled else rotary
            return lambda: called(x, cos, sin)

        size = 2 * rows * columns
        for suffix, compiled in (("", False), ("_compiled", True)):
            shape = f"{rows}x{columns}"
            yield "rms_norm" + suffix, "bf16", shape, 2 * size, 0, lambda p=pair, c=compiled, n=columns: p(rms_norm, c, second=(n,))
            yield "silu_multiply" + suffix, "bf16", shape, 3 * size, 0, lambda p=pair, c=compiled: p(silu_multiply, c)
            yield "rotary" + suffix, "bf16", shape, 2 * size, 0, lambda t=turned, c=compiled: t(c)
        yield "add", "bf16", f"{rows}x{columns}", 3 * size, 0, lambda p=pair: p(torch.add, False)
    for rows, columns in [(2048, 32000), (8192, 32000), (2048, 128256)]:
        for suffix, compiled in (("", False), ("_compiled", True)):
            def loss(compiled=compiled, rows=rows, columns=columns):
                torch._dynamo.reset()
                x, targets = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16), torch.randint(columns, (rows,), device="cuda")
                called = torch.compile(cross_entropy, dynamic=False) if compiled else cross_entropy
                return lambda: called(x, targets)

            yield "cross_entropy" + suffix, "bf16", f"{rows}x{columns}", 2 * rows * columns, 0, loss
    for count in [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30]:
        def one(function, dtype, count=count):
            x = torch.zeros(count, device="cuda", dtype=dtype)
            return lambda: function(x)

        yield "cast", "fp32_to_bf16", str(count), 6 * count, 0, lambda o=one: o(lambda x: x.to(torch.bfloat16), torch.float32)
        yield "cast", "bf16_to_fp32", str(count), 6 * count, 0, lambda o=one: o(lambda x: x.float(), torch.bfloat16)
        yield "cast", "bf16_to_e4m3", str(count), 3 * count, 0, lambda o=one: o(lambda x: x.to(E4M3), torch.bfloat16)
        yield "amax", "bf16", str(count), 2 * count, 0, lambda o=one: o(lambda x: x.abs().amax(), torch.bfloat16)
        yield "copy", "fp32", str(count), 8 * count, 0, lambda o=one: o(lambda x: x.clone(), torch.float32)


class HostTime:
    """Marks a function whose time is the host's, of `calls` calls."""

    def __init__(self, function, calls):
        self.function, self.calls = function, calls


def host():
    def launch():
        x = torch.zeros(1, device="cuda")
        return HostTime(lambda: x.add_(1), 2000)

    def module_call():
        linear, x = torch.nn.Linear(16, 16, device="cuda"), torch.zeros(16, 16, device="cuda")
        return HostTime(lambda: linear(x), 2000)

    def graph_launch():
        x = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(100):
                x.add_(1)
        return HostTime(graph.replay, 50)

    yield "launch", "fp32", "1", 0, 0, launch
    yield "module_call", "fp32", "16x16", 0, 0, module_call
    yield "graph_launch", "fp32", "100", 0, 0, graph_launch


def timed(function):
    if not isinstance(function, HostTime):
        return [1e3 * each for each in do_bench(function, warmup=10, rep=40, quantiles=[0.5, 0.2, 0.8])]
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(function.calls):
            function.function()
        times.append(1e6 * (time.perf_counter() - begin) / function.calls)
    times.sort()
    return [times[10], times[4], times[16]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=argparse.FileType("w"), default=sys.stdout)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    rows = csv.writer(arguments.out)
    rows.writerow(["operator", "dtype", "shape", "bytes", "flops", "us", "us_20", "us_80", "error"])
    end = time.monotonic() + arguments.seconds
    for operator, dtype, shape, size, flops, make in cases():
        if time.monotonic() > end:
            print(f"stopped before {operator} {shape}: {arguments.seconds} s are over", file=sys.stderr)
            break
        try:
            rows.writerow([operator, dtype, shape, size, flops, *(f"{each:.2f}" for each in timed(make())), ""])
        except Exception as error:  # noqa: BLE001  one operator that this torch or GPU lacks must not end the others
            rows.writerow([operator, dtype, shape, size, flops, "", "", "", " ".join(str(error).split())[:160]])
        arguments.out.flush()


if __name__ == "__main__":
    main()
