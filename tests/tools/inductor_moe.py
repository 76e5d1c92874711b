"""Records what torch.compile makes of a decoder layer with experts that transformers runs: the kernels that inductor's scheduler fuses, and the bytes that each reads and writes.

    build/test-python tests/tools/inductor_moe.py OUT.json [--show]

No GPU is needed (inductor_kernels.py). Experts run as grouped_mm, which is transformers' default; attention is one operator. `--show` prints the kernels, in numbers of the rows of all chosen experts.
Rows that a kernel reads or adds to by an index are counted each time: experts' rows are in another order than those of the tokens, so that a row has left the cache before it is read again. Tables
of a row for each expert, such as biases, are counted once.
tests/core/workload/compiled_experts_test.cpp compares its recording, tests/data/inductor_moe.json, with what the simulator fuses.
"""
import argparse
import collections
import importlib
import json
import math

import torch
import torch.nn as nn
from inductor_kernels import NO_SIZE, saved_bytes, scheduled_graphs
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BATCH, SEQ = 2, 2048
TABLE = 64  # numbers that are read so many times each stay in the cache
NAME = 100  # letters of a kernel's name that are kept
SIZES = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 1536, "num_experts_per_tok": 4, "num_hidden_layers": 2,
         "vocab_size": 1000, "max_position_embeddings": 4096}
FAMILIES = {
    "qwen3_moe": ("Qwen3Moe", {**SIZES, "moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 8, "norm_topk_prob": True}),
    "mixtral": ("Mixtral", {**SIZES, "num_local_experts": 8, "num_experts_per_tok": 2}),
    "gpt_oss": ("GptOss", {**SIZES, "num_local_experts": 16, "layer_types": ["full_attention"] * 2}),
    "deepseek_v3": ("DeepseekV3", {**{key: value for key, value in SIZES.items() if key != "head_dim"}, "num_key_value_heads": 16, "moe_intermediate_size": 768, "n_routed_experts": 32,
                                   "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 4, "topk_group": 2, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                                   "qk_nope_head_dim": 128, "v_head_dim": 128}),
}


@torch.library.custom_op("shown::attention", mutates_args=())
def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError


@torch.library.custom_op("shown::attention_backward", mutates_args=())
def attend_backward(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise NotImplementedError


@attend.register_fake
def _(q, k, v):
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)


@attend_backward.register_fake
def _(grad, q, k, v, out):
    return tuple(each.new_empty(each.shape[0], each.shape[2], each.shape[1], each.shape[3]).transpose(1, 2) for each in (q, k, v))


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output)


attend.register_autograd(lambda ctx, grad: attend_backward(grad, *ctx.saved_tensors), setup_context=keep)
ALL_ATTENTION_FUNCTIONS.register("shown", lambda module, query, key, value, mask, **others: (attend(query, key, value).transpose(1, 2), None))


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, cos, sin):
        return self.layer(x, position_embeddings=(cos, sin))


def bytes_of(lowering, dependencies):
    """By buffer."""
    direct, indexed = collections.Counter(), collections.Counter()
    for each in dependencies:
        if isinstance(each, MemoryDep) and each.is_indirect():
            indexed[each.name] += math.prod(map(lowering.sizevars.size_hint, each.size)) * lowering.get_dtype(each.name).itemsize
        elif isinstance(each, (MemoryDep, StarDep)):
            direct[each.name] += lowering.scheduler.dep_size_hint(each)
    out = {}
    for name in direct | indexed:
        whole = lowering.scheduler.dep_size_hint(StarDep(name))
        whole = math.inf if whole <= NO_SIZE else whole
        # Loops over what the index alone depends on are not in the size of what is indexed.
        by_index = max(indexed[name], whole) if name in indexed else 0
        out[name] = min(direct[name], whole) + (whole if by_index > TABLE * whole else by_index)
    return out


def kernels_of(lowering):
    out = []
    for node in lowering.scheduler.nodes:
        extern = node.is_extern()
        name = getattr(getattr(node, "node", None), "python_kernel_name", None) if extern else "+".join(sorted({origin.name for part in node.get_nodes() for origin in part.node.origins}))
        if name is None or isinstance(node, NopKernelSchedulerNode):
            continue  # one of several outputs, or memory that nothing writes
        own = node.get_operation_names() | {node.get_name()}
        made = {each.get_name(): each for part in node.get_nodes() for each in part.get_outputs()}
        # Inductor does not store what no other kernel takes.
        within = {name for name, each in made.items() if not extern and not each.get_mutations() and all(user.get_name() in own for user in each.users)}
        read = bytes_of(lowering, [each for each in node.read_writes.reads if each.name not in made])
        written = bytes_of(lowering, [each for each in node.read_writes.writes if each.name not in within])
        for changed, each in made.items():
            for target in each.get_mutations() if changed in written and not extern else ():
                read[target] = written[changed]  # it adds to what it reads
        out.append({"extern": extern, "name": name[:NAME], "read": int(sum(read.values())), "written": int(sum(written.values()))})
    return out


def recorded(family):
    prefix, sizes = FAMILIES[family]
    models = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    config = getattr(importlib.import_module(f"transformers.models.{family}.configuration_{family}"), f"{prefix}Config")(**sizes)
    config._attn_implementation, config._experts_implementation = "shown", "grouped_mm"
    torch.set_default_dtype(torch.bfloat16)
    with FakeTensorMode():
        layer = Layer(getattr(models, f"{prefix}DecoderLayer")(config, 0))
        x = torch.empty(BATCH, SEQ, config.hidden_size, requires_grad=True)
        rotated = config.qk_rope_head_dim if family == "deepseek_v3" else config.head_dim // 2 if family == "gpt_oss" else config.head_dim
        table = torch.empty(1, SEQ, rotated)
        found = scheduled_graphs(layer, (x, table, table))
    out = {"config": {"model_type": family, **sizes}, "saved": saved_bytes(found["forward"])}
    for phase in ("forward", "backward"):
        with V.set_graph_handler(found[phase]):
            out[phase] = kernels_of(found[phase])
    return out


def show(family, of):
    unit = BATCH * SEQ * of["config"]["num_experts_per_tok"] * of["config"]["hidden_size"] * 2
    print(f"{family}: saves {of['saved'] / unit:.3f}")
    for phase in ("forward", "backward"):
        print(f"  {phase}: {sum(not each['extern'] for each in of[phase])} kernels")
        for each in of[phase]:
            print(f"    {'operator' if each['extern'] else 'kernel  '} reads {each['read'] / unit:7.4f}, writes {each['written'] / unit:7.4f}: {each['name'][:150]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    families = {family: recorded(family) for family in FAMILIES}
    if options.show:
        for family, of in families.items():
            show(family, of)
    with open(options.out, "w") as file:
        file.write(json.dumps({"torch": torch.__version__.split("+")[0], "batch": BATCH, "seq": SEQ, "families": families}, indent=1) + "\n")


if __name__ == "__main__":
    main()
