"""The costs of an ATen operator: its kind, the sizes of its products, FLOPs, and the bytes that it reads and writes.

A product is (batch, m, n, k): batch times [m, k]·[k, n]. FLOPs are those of torch.utils.flop_counter, where it has a formula.
"""
from __future__ import annotations

import math
from typing import Any

GEMM, GROUPED, ATTENTION, CONVOLUTION = "gemm", "grouped_gemm", "attention", "convolution"

_INDEX = ("index", "index_select", "gather", "scatter", "scatter_add", "index_put", "index_add", "_index_put_impl", "take_along_dim", "topk", "sort")
_NORMS = ("norm", "rms_norm")
_LOSSES = ("nll_loss", "_log_softmax", "cross_entropy", "binary_cross_entropy", "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")
# Operators whose results have no memory of their own, or that have no kernel.
NO_KERNEL = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_efficientzerotensor", "resize_")
# The first argument is overwritten and not read.
_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "trunc_normal_")
# Only the chosen rows of the first argument are read or written.
_READS_ROWS = ("index", "index_select", "gather", "embedding", "take_along_dim")
_WRITES_ROWS = ("index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_", "scatter_reduce_")
# The first argument gives only the shape.
_SHAPE_ONLY = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
_REDUCES = ("sum", "mean", "amax", "amin")


class Product:
    """One matrix product. `flops` counts a multiplication and an addition each."""

    def __init__(self, batch: int, m: int, n: int, k: int, flops: int | None = None, causal: bool | None = None) -> None:
        self.sizes = [int(batch), int(m), int(n), int(k)]
        self.flops = int(flops if flops is not None else 2 * batch * m * n * k)
        self.causal = causal


def _gemm(a: Any, b: Any, batch: int = 1) -> Any:
    return Product(batch, a.shape[-2], b.shape[-1], a.shape[-1])


def _grouped(a: Any, b: Any, out: Any) -> Any:
    """The products of torch._grouped_mm, whose groups are chosen equally often."""
    if a.dim() == 2 and b.dim() == 3:
        groups = min(b.shape[0], a.shape[0])
        return Product(groups, -(-a.shape[0] // groups), b.shape[2], b.shape[1], 2 * a.shape[0] * b.shape[1] * b.shape[2])
    if a.dim() == 2 and b.dim() == 2:  # the gradient of the weights: the sum is over the rows of a group
        groups = min(out.shape[0], a.shape[1])
        return Product(groups, a.shape[0], b.shape[1], -(-a.shape[1] // groups), 2 * a.shape[0] * a.shape[1] * b.shape[1])
    if a.dim() == 3 and b.dim() == 2:
        groups = min(a.shape[0], b.shape[1])
        return Product(groups, a.shape[1], -(-b.shape[1] // groups), a.shape[2], 2 * b.shape[1] * a.shape[1] * a.shape[2])
    return _gemm(a, b, a.shape[0])


def _convolution(x: Any, weight: Any, out: Any, transposed: Any, groups: Any) -> Any:
    """A convolution as the product of the unfolded image and the kernels."""
    spatial = math.prod((x if transposed else out).shape[2:])
    taps = math.prod(weight.shape[2:])
    rows = x.shape[0] * spatial
    if transposed:  # weight [in, out / groups, …]
        return Product(groups, rows, weight.shape[1] * taps, weight.shape[0] // groups)
    return Product(groups, rows, weight.shape[0] // groups, weight.shape[1] * taps)


def _convolution_gradients(out_gradient: Any, x: Any, weight: Any, transposed: Any, groups: Any, wanted: Any) -> Any:
    batch, m, n, k = _convolution(x, weight, out_gradient, transposed, groups).sizes
    found = []
    if wanted[0]:
        found.append(Product(batch, m, k, n))
    if wanted[1]:
        found.append(Product(batch, k, n, m))
    return found


def _attention(query: Any, key: Any, value: Any, backward: bool, causal: bool | None, pairs: Any) -> Any:
    """Scores and their product with the values; backward computes the scores again and four gradients."""
    batch, rows, keys = math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2]
    if pairs is not None and 0 < pairs < rows * (keys + 1) // 2 and rows == keys:
        # A window of w keys has rows·w - w·(w-1)/2 pairs; docs/reference/model.md has the keys that are counted for it.
        window = round(((2 * rows + 1) - math.sqrt((2 * rows + 1) ** 2 - 8 * pairs)) / 2)
        keys = window * (2 * rows - window) // rows
    of_keys, of_values = (2 * batch * rows * keys * size for size in (query.shape[-1], value.shape[-1]))
    flops = 3 * of_keys + 2 * of_values if backward else of_keys + of_values
    return Product(batch, rows, keys, query.shape[-1], flops, causal)


def products_of(name: str, named: Any, outputs: Any, pairs_of: Any) -> Any:
    """The kind of an operator that is made of products, and these; otherwise None. `named`: arguments by name. `pairs_of(mask)`: how many
    pairs of a query and a key a mask allows, or None."""
    base = name.rstrip("_")
    if base in ("mm", "_scaled_mm"):
        return GEMM, [_gemm(named["self"], named["mat2"])]
    if base == "addmm":
        return GEMM, [_gemm(named["mat1"], named["mat2"])]
    if base == "bmm":
        return GEMM, [_gemm(named["self"], named["mat2"], named["self"].shape[0])]
    if base == "baddbmm":
        return GEMM, [_gemm(named["batch1"], named["batch2"], named["batch1"].shape[0])]
    if base in ("_grouped_mm", "_scaled_grouped_mm"):
        return GROUPED, [_grouped(named["self"], named["mat2"], outputs[0])]
    if base == "convolution":
        return CONVOLUTION, [_convolution(named["input"], named["weight"], outputs[0], named["transposed"], named["groups"])]
    if base == "convolution_backward":
        return CONVOLUTION, _convolution_gradients(
            named["grad_output"], named["input"], named["weight"], named["transposed"], named["groups"], named["output_mask"])
    if base.startswith("_scaled_dot_product_"):
        return ATTENTION, [_scaled_dot_product(base.endswith("_backward"), named, pairs_of)]
    return None


def _scaled_dot_product(backward: bool, named: Any, pairs_of: Any) -> Any:
    query, key, value = named["query"], named["key"], named["value"]
    mask = named.get("attn_mask", named.get("attn_bias"))
    pairs = pairs_of(mask) if mask is not None else None
    half = query.shape[-2] * (key.shape[-2] + 1) // 2
    causal = named["is_causal"] or (pairs is not None and pairs <= half)
    return _attention(query, key, value, backward, causal, pairs)


def kind_of(func: Any, name: str) -> str:
    """The kind of an operator without products."""
    import torch

    base = name.removesuffix("_backward").removesuffix("_backward_data").rstrip("_")
    if base.startswith("embedding"):
        return "embedding"
    if any(base.startswith(loss) for loss in _LOSSES):
        return "loss"
    if base.startswith(("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm", "cudnn_batch_norm", "_fused_rms_norm", *_NORMS)):
        return "norm"
    if base in _INDEX:
        return "index"
    if torch.Tag.pointwise in func.tags or base in ("_to_copy", "clone", "copy", "native_dropout", "_softmax", *_REDUCES):
        return "elementwise"
    return "other"


def extent(tensor: Any) -> Any:
    """Bytes of memory that a tensor covers; an expanded dimension covers none."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride != 0 or size == 0) * tensor.element_size()


def traffic(name: str, inputs: Any, outputs: Any) -> Any:
    """Bytes that the operator reads and writes."""
    read, written = sum(map(extent, inputs)), sum(map(extent, outputs))
    if not inputs:
        return 0, written
    if name in _SHAPE_ONLY:
        return 0, written
    if name.startswith("nll_loss"):  # one number of each row
        return read - max(map(extent, inputs)), written
    if name in _OVERWRITES:
        return read - extent(inputs[0]), written
    if name in _READS_ROWS:
        return written + read - extent(inputs[0]), written
    if name in _WRITES_ROWS:
        values = read - extent(inputs[0])
        return values, max(map(extent, inputs[1:]), default=0)
    return read, written
