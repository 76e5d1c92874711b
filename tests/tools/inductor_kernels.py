"""Records what torch.compile makes of a transformer block: the kernels that inductor's scheduler fuses, and the bytes that each reads and writes.

    python3 tests/tools/inductor_kernels.py OUT.json

No GPU is needed. A block is traced on fake CPU tensors; its forward and backward graphs, as AOTAutograd's
min-cut partitioner leaves them, are then moved to a fake CUDA device with the properties of an H100,
lowered, and scheduled by inductor's Triton backend, without code being generated. Attention is the
operator of FlashAttention. Products are left to cuBLAS, which is inductor's default. "llama-t2" is one
of two ranks that divide the block with sequence parallelism; its collectives are those that DTensor
issues, over a fake process group.
tests/core/workload/compiled_test.cpp compares its recording, tests/data/inductor_kernels.json, with
what the simulator fuses.
"""
import json
import math
import sys

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.nn as nn
import torch.nn.functional as F
from torch._inductor import graph, scheduler
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map

BATCH, SEQ, DTYPE = 2, 2048, torch.bfloat16
# By family: hidden, heads, heads of keys and values, head size, inner size.
RANKS = 2  # of llama-t2
NO_SIZE = 2  # bytes of a buffer whose size inductor does not know: what wait_tensor returns
SHAPES = {"llama": (2048, 32, 8, 64, 5632), "llama-t2": (2048, 32, 8, 64, 5632), "gpt2": (1024, 16, 16, 64, 4096), "qwen3": (1024, 16, 8, 128, 3072)}


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


class RMSNorm(nn.Module):  # LlamaRMSNorm of transformers
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


def attend(q, k, v):
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
    return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)


class Llama(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head, inner, head_norms=False):
        super().__init__()
        self.sizes = (heads, kv_heads, kv_heads)
        self.head = head
        self.norms = nn.ModuleList([RMSNorm(hidden), RMSNorm(hidden)])
        self.qkv = nn.ModuleList([linear(hidden, n * head) for n in self.sizes])
        self.head_norms = nn.ModuleList([RMSNorm(head), RMSNorm(head)]) if head_norms else None
        self.out, self.gate, self.up, self.down = linear(heads * head, hidden), linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)

    def forward(self, x, cos, sin):
        y = self.norms[0](x)
        parts = []
        for i, (project, heads) in enumerate(zip(self.qkv, self.sizes)):
            part = project(y).view(*y.shape[:2], heads, self.head)
            if self.head_norms is not None and i < 2:
                part = self.head_norms[i](part)
            part = part.transpose(1, 2)
            parts.append(rotated(part, cos, sin) if i < 2 else part)
        x = x + self.out(attend(*parts))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class DividedLlama(Llama):
    """A rank's part: x has its part of the sequence, products its heads and inner features."""

    def __init__(self, hidden, heads, kv_heads, head, inner):
        super().__init__(hidden, heads // RANKS, kv_heads // RANKS, head, inner // RANKS)
        self.group = dist.group.WORLD

    def gathered(self, x):
        return functional.all_gather_tensor_autograd(x, 1, self.group)

    def summed(self, x):
        return functional.reduce_scatter_tensor_autograd(x, "sum", 1, self.group)

    def forward(self, x, cos, sin):
        y = self.gathered(self.norms[0](x))
        parts = [project(y).view(*y.shape[:2], heads, self.head).transpose(1, 2) for project, heads in zip(self.qkv, self.sizes)]
        parts = [rotated(part, cos, sin) if i < 2 else part for i, part in enumerate(parts)]
        x = x + self.summed(self.out(attend(*parts)))
        y = self.gathered(self.norms[1](x))
        return x + self.summed(self.down(F.silu(self.gate(y)) * self.up(y)))


class Qwen3(Llama):
    def __init__(self, *shape):
        super().__init__(*shape, head_norms=True)


class GPT2(nn.Module):
    def __init__(self, hidden, heads, kv_heads, head, inner):
        super().__init__()
        self.heads, self.head = heads, head
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.qkv, self.out = linear(hidden, 3 * hidden, True), linear(hidden, hidden, True)
        self.up, self.down = linear(hidden, inner, True), linear(inner, hidden, True)

    def forward(self, x, cos, sin):
        y = self.qkv(self.norms[0](x))
        parts = [part.view(*x.shape[:2], self.heads, self.head).transpose(1, 2) for part in y.chunk(3, dim=-1)]
        x = x + self.out(attend(*parts))
        y = self.up(self.norms[1](x))
        return x + self.down(F.gelu(y, approximate="tanh"))


FAMILIES = {"llama": Llama, "llama-t2": DividedLlama, "gpt2": GPT2, "qwen3": Qwen3}


class Scheduled(Exception):
    """Raised in place of generating code."""


def scheduled_graphs(module, inputs):
    """The GraphLowering of forward and of backward, each with its scheduler."""
    found = {}

    def codegen(lowering):
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        found["backward" if lowering.is_backward else "forward"] = lowering
        raise Scheduled

    def on_cuda(tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    def inner(module, inputs, **options):
        with torch._guards.detect_fake_mode(inputs):
            for node in module.graph.nodes:
                if "val" in node.meta:
                    node.meta["val"] = tree_map(on_cuda, node.meta["val"])
                if "device" in node.kwargs:
                    node.kwargs = {**node.kwargs, "device": torch.device("cuda:0")}
            inputs = [on_cuda(each) for each in inputs]
        try:
            compile_fx.compile_fx_inner(module, inputs, **options)
        except Exception as error:
            while error is not None and not isinstance(error, Scheduled):
                error, last = error.__cause__ or error.__context__, error
            if error is None:
                raise last

        def run(*arguments):
            raise Scheduled

        return run

    DeviceProperties.create = classmethod(
        lambda cls, device: cls(type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
                                max_threads_per_block=1024, warp_size=32))
    compile_fx._check_triton_bf16_support = lambda lowering: None
    scheduler.Scheduler.create_backend = lambda self, device: CUDACombinedScheduling(self)
    graph.GraphLowering.codegen = graph.GraphLowering.codegen_with_cpp_wrapper = codegen
    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._functorch.config.enable_autograd_cache = False
    torch._inductor.config.fx_graph_cache = False
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend=lambda graph_module, example: compile_fx.compile_fx(graph_module, example, inner_compile=inner))
    try:
        compiled(*inputs)
    except Scheduled:
        pass
    return found


def kernels_of(lowering):
    out = []
    for node in lowering.scheduler.nodes:
        extern = node.is_extern()
        name = getattr(getattr(node, "node", None), "python_kernel_name", None) if extern else "+".join(sorted({origin.name for part in node.get_nodes() for origin in part.node.origins}))
        if extern and name is None:
            continue  # one of several outputs

        def bytes_of(dependencies):
            by_buffer = {}
            for each in dependencies:
                if isinstance(each, (MemoryDep, StarDep)):
                    # A masked read of a part counts every iteration of the loop: no more than the buffer has.
                    whole = lowering.scheduler.dep_size_hint(StarDep(each.name))
                    whole = math.inf if whole <= NO_SIZE else whole
                    by_buffer[each.name] = max(by_buffer.get(each.name, 0), min(lowering.scheduler.dep_size_hint(each), whole))
            return sum(by_buffer.values())

        own = node.get_operation_names() | {node.get_name()}
        made = {each.get_name(): each for part in node.get_nodes() for each in part.get_outputs()}
        # Inductor does not store what no other kernel takes.
        within = {name for name, each in made.items() if not extern and all(user.get_name() in own for user in each.users)}
        reads = [each for each in node.read_writes.reads if each.name not in made]
        writes = [each for each in node.read_writes.writes if each.name not in within]
        out.append({"extern": extern, "name": name, "read": bytes_of(reads), "written": bytes_of(writes)})
    return out


def saved_bytes(lowering):
    """Bytes of the activations that forward hands to backward, without parameters and inputs."""
    inputs = set(lowering.graph_input_names)
    own = 0
    for output in lowering.graph_outputs[1:]:
        if output.get_name() not in inputs and hasattr(output, "get_numel"):
            own += int(output.get_numel()) * output.get_dtype().itemsize
    return own


def record():
    out = {"torch": torch.__version__.split("+")[0], "batch": BATCH, "seq": SEQ, "families": {}}
    for family, make in FAMILIES.items():
        hidden, heads, kv_heads, head, inner = SHAPES[family]
        torch.set_default_dtype(DTYPE)
        with FakeTensorMode():
            module = make(hidden, heads, kv_heads, head, inner)
            x = torch.empty(BATCH, SEQ // RANKS if make is DividedLlama else SEQ, hidden, requires_grad=True)
            cos = torch.empty(SEQ, head)
            found = scheduled_graphs(module, (x, cos, cos))
        kernels = {}
        for phase in ("forward", "backward"):
            with V.set_graph_handler(found[phase]):
                kernels[phase] = kernels_of(found[phase])
        out["families"][family] = {
            **({"tensor": RANKS} if make is DividedLlama else {}), "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head, "intermediate": inner, "saved": saved_bytes(found["forward"]),
            **kernels}
    return out


def main():
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    text = json.dumps(record(), indent=1)
    with open(sys.argv[1], "w") as file:
        file.write(text + "\n")


if __name__ == "__main__":
    main()
