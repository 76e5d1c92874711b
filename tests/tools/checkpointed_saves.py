#!/usr/bin/env python3
"""What a block under torchtitan's selective checkpoint keeps for backward, eager and compiled, counted by saved_tensors_hooks.

    checkpointed_saves.py     run it with build/test-python

The checkpoint is told to keep the result of attention and of every second product. Printed for each of a block's saved tensors, in parts of the block's
input: eager code keeps all those results, compiled code what the partitioner finds that backward needs of them. The source of a test in
tests/core/workload/compiled_test.cpp.
"""
import collections

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

WIDTH, KEYS, HIDDEN, BATCH, SEQ, BLOCKS = 64, 16, 224, 2, 128, 3
ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_efficient_attention.default,
             torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, size, bias=False) for size in (WIDTH, KEYS, KEYS, WIDTH))
        self.w1, self.w2, self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, WIDTH, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (linear(y).unflatten(-1, (-1, KEYS)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


def contexts(kept=None):
    """Those of torchtitan 0.2.2; the results that an eager forward keeps go to `kept`."""
    products = collections.Counter()

    def policy(context, function, *args, **kwargs):
        is_product = function == torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        saves = function in ATTENTION or (is_product and products[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    forward, recompute = create_selective_checkpoint_contexts(policy)
    return (forward, recompute) if kept is None else (Kept(forward, kept), recompute)


class Kept(TorchDispatchMode):
    """Lists what create_selective_checkpoint_contexts stores, which no hook of saved tensors sees."""

    def __init__(self, inside, kept):
        super().__init__()
        self.inside, self.kept = inside, kept

    def __enter__(self):
        self.inside.__enter__()
        return self

    def __exit__(self, *error):
        for results in self.inside.storage.values():
            for result in results:
                self.kept += [each.val for each in (result if isinstance(result, (list, tuple)) else [result]) if torch.is_tensor(getattr(each, "val", None))]
        return self.inside.__exit__(*error)


def saved_by_a_block(compiled):
    torch.manual_seed(0)
    kept = []
    blocks = [checkpoint_wrapper(Block(), context_fn=contexts if compiled else lambda: contexts(kept)) for _ in range(BLOCKS)]
    parameters = {parameter.data_ptr() for block in blocks for parameter in block.parameters()}
    if compiled:
        for block in blocks:
            block.compile(backend="aot_eager_decomp_partition", fullgraph=True)
    tensors = []
    for _ in range(2):  # the second time is compiled
        tensors.clear()
        kept.clear()
        x = torch.randn(BATCH, SEQ, WIDTH)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensors.append(tensor), tensor)[1], lambda tensor: tensor):
            for block in blocks:
                x = block(x)
        x.sum().backward()
    unique = {tensor.data_ptr(): tensor for tensor in tensors + kept if tensor.numel() and tensor.data_ptr() not in parameters}
    return [(tuple(each.shape), each.numel() / (BATCH * SEQ * WIDTH)) for each in unique.values()]


def main():
    for compiled in (False, True):
        rows = saved_by_a_block(compiled)
        print(f"{'compiled' if compiled else 'eager'}: {sum(size for _, size in rows) / BLOCKS:.4f} times its input for a block")
        for shape, size in rows[: len(rows) // BLOCKS]:
            print(f"  {shape}: {size:.4f}")


if __name__ == "__main__":
    main()
