"""Measures the host time of code that torch.compile made, on tiny tensors of a CPU: per call, per kernel of its own, per product.

    python3 bench/compiled_host_cost.py

The tensors are so small that nothing is computed to speak of. A call is measured with one kernel, with a
chain of products, and with a chain in which kernels and products alternate; times are medians of forward and backward. What a launch on a GPU costs the driver is not in them.
"""
import os
import statistics
import time

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
import torch

torch.set_num_threads(1)
ROUNDS, CALLS = 15, 200


def seconds_of(function, x):
    for _ in range(20):
        function(x).sum().backward()
    out = []
    for _ in range(ROUNDS):
        spent = 0.0
        for _ in range(CALLS):
            begin = time.perf_counter()
            y = function(x)
            spent += time.perf_counter() - begin
        out.append(spent / CALLS)
    return statistics.median(out)


def chain(products, kernels):
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(products)]

    def run(x):
        for weight in weights:
            x = x @ weight
            if kernels:
                x = torch.sin(x)
        return x if products else torch.sin(x)

    return run


def main():
    x = torch.randn(4, 4, requires_grad=True)
    us = {}
    for name, products, kernels in (("one kernel", 0, False), ("8 products", 8, False), ("8 products, 8 kernels", 8, True)):
        for how in ("eager", "compiled"):
            function = chain(products, kernels)
            us[name, how] = 1e6 * seconds_of(torch.compile(function) if how == "compiled" else function, x)
            print(f"{name}, {how}: {us[name, how]:.1f} us")
    print(f"a call: {us['one kernel', 'compiled']:.1f} us")
    print(f"a product: {(us['8 products', 'compiled'] - us['one kernel', 'compiled']) / 8:.2f} us, eager {us['8 products', 'eager'] / 8:.2f}")
    print(f"a kernel: {(us['8 products, 8 kernels', 'compiled'] - us['8 products', 'compiled']) / 8:.2f} us, eager {(us['8 products, 8 kernels', 'eager'] - us['8 products', 'eager']) / 8:.2f}")


if __name__ == "__main__":
    main()
