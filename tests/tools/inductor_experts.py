"""Prints what torch.compile makes of a block of gpt-oss-20b as torchtitan has it: the kernels of inductor and the operators that it leaves to ATen, with what each reads and writes.

    PYTHONPATH=TORCH python3 tests/tools/inductor_experts.py [--checkpoint]

No GPU is needed (inductor_kernels.py); TORCH: a folder with torch 2.15. Sizes are in numbers of the experts' inner rows: 4 rows for each of 8192 tokens, 2880 bf16 numbers each. `--checkpoint`: the whole block runs again in backward.
FlashAttention is in place of FlexAttention. Of a row whose every second number a kernel reads, only these are counted.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint
from inductor_kernels import kernels_of, scheduled_graphs
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

TOKENS, HIDDEN, HEADS, KV_HEADS, HEAD, INNER, EXPERTS, CHOSEN = 8192, 2880, 64, 8, 64, 2880, 32, 4
UNIT = TOKENS * CHOSEN * INNER * 2
SMALLEST = UNIT / 20  # of what is printed


@torch.library.custom_op("shown::deterministic_scatter_add", mutates_args=())
def scatter_add(out: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return out.scatter_add(0, index, src)


@scatter_add.register_fake
def _(out, index, src):
    return torch.empty_like(out)


scatter_add.register_autograd(lambda ctx, grad: (grad, None, torch.gather(grad, 0, ctx.saved_tensors[0])), setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]))


def swiglu(x):
    gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(min=-7.0, max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)])
        self.qkv = nn.ModuleList([nn.Linear(HIDDEN, heads * HEAD) for heads in (HEADS, KV_HEADS, KV_HEADS)])
        self.sinks = nn.Parameter(torch.empty(HEADS))
        self.out, self.router = nn.Linear(HEADS * HEAD, HIDDEN), nn.Linear(HIDDEN, EXPERTS)
        self.up, self.up_bias = nn.Parameter(torch.empty(EXPERTS, 2 * INNER, HIDDEN)), nn.Parameter(torch.empty(EXPERTS, 2 * INNER))
        self.down, self.down_bias = nn.Parameter(torch.empty(EXPERTS, HIDDEN, INNER)), nn.Parameter(torch.empty(EXPERTS, HIDDEN))

    def attention(self, x, cos, sin):
        parts = []
        for i, project in enumerate(self.qkv):
            part = project(x).view(*x.shape[:2], -1, HEAD)
            if i < 2:
                wide = part.float()
                half = torch.cat((-wide[..., HEAD // 2:], wide[..., :HEAD // 2]), dim=-1)
                part = (wide * cos[None, :, None] + half * sin[None, :, None]).to(part.dtype)
            parts.append(part.transpose(1, 2))
        out, sums = (each.transpose(1, 2) for each in torch.ops.aten._scaled_dot_product_flash_attention(*parts, 0.0, True)[:2])
        out = out * torch.sigmoid(sums - self.sinks.view(1, 1, -1)).unsqueeze(-1).to(out.dtype)
        return self.out(out.reshape(*x.shape[:2], -1))

    def experts(self, x):
        scores = F.softmax(F.linear(x.float(), self.router.weight.float(), self.router.bias.float()), dim=1)
        chosen = torch.topk(scores, k=CHOSEN, dim=-1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        counts = torch.histc(chosen.view(-1).float(), bins=EXPERTS, min=0, max=EXPERTS).long()
        order = torch.argsort(chosen.view(-1), stable=True)
        tokens, ends = order // CHOSEN, torch.cumsum(counts, 0, dtype=torch.int32)

        def biases(table):
            return table.repeat_interleave(counts, dim=0, output_size=tokens.shape[0])

        h = torch._grouped_mm(x[tokens], self.up.transpose(-2, -1), offs=ends) + biases(self.up_bias)
        h = torch._grouped_mm(swiglu(h), self.down.transpose(-2, -1), offs=ends) + biases(self.down_bias)
        h = (h.float() * weights.view(-1)[order].reshape(-1, 1)).to(h.dtype)
        return scatter_add(torch.zeros_like(x), tokens.reshape(-1, 1).expand(-1, HIDDEN), h)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norms[0](x), cos, sin)
        return x + self.experts(self.norms[1](x).view(-1, HIDDEN)).view(x.shape)


class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *inputs):
        return torch.utils.checkpoint.checkpoint(self.block, *inputs, use_reentrant=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode():
        block = Checkpointed(Block()) if options.checkpoint else Block()
        table = torch.empty(TOKENS, HEAD, dtype=torch.float32)
        found = scheduled_graphs(block, (torch.empty(1, TOKENS, HIDDEN, requires_grad=True), table, table))
    for phase in ("forward", "backward"):
        with V.set_graph_handler(found[phase]):
            kernels = kernels_of(found[phase])
        print(f"{phase}: {sum(not each['extern'] for each in kernels)} kernels, {sum(each['extern'] for each in kernels)} operators")
        for each in kernels:
            if each["read"] + each["written"] > SMALLEST:
                print(f"  {'operator' if each['extern'] else 'kernel  '} reads {each['read'] / UNIT:5.2f}, writes {each['written'] / UNIT:5.2f}: {each['name'][:120]}")


if __name__ == "__main__":
    main()
