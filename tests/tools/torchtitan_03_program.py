"""A training step of torchtitan 0.3, whose head and loss run in chunks with a backward each: its collectives, and its memory for memory_tracker.py.

    PYTHONPATH=TORCH python tests/tools/torchtitan_03_program.py record tests/data/torchtitan_03.json DIR
    PYTHONPATH=TORCH python tests/tools/torchtitan_03_program.py show DIR [--whole-loss]

Needs torch 2.15 and the packages that `pip install --target DIR --no-deps torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing tyro docstring_parser typeguard torchdata einops` installs.
The models run on a fake process group, in fake tensors: nothing is computed. `record`: for each configuration the collectives of FSDP2 in the second step, with unit and bytes. `show`: the
same of the first configuration between the forwards and backwards of modules; `--whole-loss`: with torchtitan's loss of all tokens at once.
Attention is scaled_dot_product_attention instead of flex attention, which runs only compiled; norms are a GPU's kernel (torchtitan_program.py); routers' products are in fp32 as on a GPU.
"""
import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python"), str(Path(__file__).resolve().parent)]

import torchtitan_program
from torchtitan_program import checkpointed, config_of, plan_of

DEFAULT = {**torchtitan_program.DEFAULT, "version": "0.3", "parts": 8}
DTYPES = {"fp32": ("float32", "float32"), "bf16": ("bfloat16", "bfloat16"), "mixed": ("bfloat16", "float32")}


def named(rows):
    return {" ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in row.items()): {**DEFAULT, **row} for row in rows}


def configurations():
    """Changes of DEFAULT, by name: those whose memory is recorded."""
    rows = []
    for model in ("llama", "qwen3", "llama-bytes", "qwen3-bytes"):
        for change in ({"dtype": "mixed"}, {"dtype": "bf16"}, {"checkpoint": "all", "layers": 4}, {"checkpoint": "selective", "layers": 4}):
            rows.append({"model": model, **change})
    rows += [{"model": "llama", "dtype": "fp32"}, {"model": "llama", "parts": 1}, {"model": "llama", "batch": 1, "seq": 2048}, {"model": "llama", "optimizer": "foreach", "layers": 4}]
    rows += [{"model": "llama", "checkpoint": "selective", "layers": 6, "world": 64, "batch": 1, "seq": 4096}, {"model": "qwen3", "checkpoint": "all", "layers": 4, "world": 2, "batch": 4}]
    rows += [{"model": "llama", "reshard": True, "world": 2}, {"model": "llama", "reshard": False, "layers": 4, "seq": 512}]
    for model in ("deepseek", "deepseek_moe", "qwen3_moe", "deepseek_moe-bytes", "qwen3_moe-bytes"):
        rows += [{"model": model, "dtype": "mixed"}, {"model": model, "checkpoint": "all", "layers": 4}, {"model": model, "checkpoint": "selective", "layers": 4}]
    for model in ("gpt_oss", "gpt_oss-bytes"):  # what is in place of FlexAttention is none that selective checkpoints keep
        rows += [{"model": model, "dtype": "mixed"}, {"model": model, "checkpoint": "all", "layers": 4}]
    return named(rows)


def recorded():
    """The configurations whose collectives are recorded."""
    return named([{"model": "llama"}, {"model": "llama", "parts": 1}, {"model": "llama", "parts": 4, "dtype": "bf16"}, {"model": "llama", "reshard": True, "world": 2, "checkpoint": "all"},
                  {"model": "llama", "reshard": False}, {"model": "qwen3", "layers": 2}, {"model": "qwen3", "world": 64, "checkpoint": "selective"}])


def prepare(folder):
    """Makes torchtitan importable from the folder, and its RMSNorm run a GPU's kernel. Returns its version."""
    import importlib.metadata

    import torch

    sys.path.append(folder)
    torchtitan_program.importable()
    norm = torchtitan_program.fused_norm()
    torch.nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: norm.apply(x, weight)
    return f"torchtitan {importlib.metadata.version('torchtitan')}"


def latent_layers(values, shape, rope):
    from torchtitan.models import deepseek_v3

    sizes = {key: values[key] for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    return deepseek_v3.build_mla_moe_layers(
        **shape, **sizes, n_dense_layers=values["first_k_dense_replace"], mscale=1.0, dense_hidden_dim=values["intermediate_size"], moe_hidden_dim=values["moe_intermediate_size"],
        num_experts=values["n_routed_experts"], num_shared_experts=values["n_shared_experts"], router_top_k=values["num_experts_per_tok"], router_score_func="softmax",
        moe_comm_backend="standard", non_blocking_capacity_factor=None, linear_init={}, norm_init={}, depth_init=lambda layer: {}, depth_experts_init=lambda layer: {}, rope=rope)


def attention_with_sums():
    """In place of FlexAttention: a kernel that keeps its inputs, its result and the log-sums of its rows, which gpt_oss takes."""
    from dataclasses import dataclass

    import torch
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.protocols.module import Module

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            out, sums = torch.empty_like(q), torch.empty(*q.shape[:-1], dtype=torch.float32)
            ctx.save_for_backward(q, k, v, out, sums)
            return out, sums

        @staticmethod
        def backward(ctx, *grads):
            return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])

    class Attention(Module):
        @dataclass(kw_only=True, slots=True)
        class Config(FlexAttention.Config):
            pass

        def __init__(self, config):
            super().__init__()

        def forward(self, q, k, v, *, out_transform, **others):
            return out_transform(*Kernel.apply(q, k, v))

    return Attention.Config()


def model_config(row):
    """torchtitan's own description of the model, made as its registry makes those of published models."""
    from torchtitan.models import deepseek_v3, gpt_oss, llama3, qwen3
    from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    values = config_of(row)
    dim, vocabulary, family = values["hidden_size"], values["vocab_size"], values["model_type"]
    shape = {"dim": dim, "n_layers": values["num_hidden_layers"], "n_heads": values["num_attention_heads"], "attn_backend": ""}
    grouped = {**shape, "n_kv_heads": values["num_key_value_heads"]}
    for module in (deepseek_v3, llama3, qwen3):
        module.get_attention_config = lambda backend: ScaledDotProductAttention.Config()
    if family == "llama":
        rope = ComplexRoPE.Config(dim=dim // shape["n_heads"], max_seq_len=row["seq"], theta=500000.0)
        model, layers = llama3.Llama3Model, llama3._build_llama3_layers(**grouped, hidden_dim=values["intermediate_size"], rope=rope)
    elif family == "deepseek_v3":
        rope = ComplexRoPE.Config(dim=values["qk_rope_head_dim"], max_seq_len=row["seq"], theta=10000.0)
        model, layers = deepseek_v3.DeepSeekV3Model, latent_layers(values, shape, rope)
    elif family == "gpt_oss":
        rope = CosSinRoPE.Config(dim=values["head_dim"], max_seq_len=row["seq"], theta=150000.0)
        model = gpt_oss.GptOssModel
        layers = gpt_oss._build_gptoss_layers(
            dim=dim, n_layers=shape["n_layers"], hidden_dim=values["intermediate_size"], num_experts=values["num_local_experts"], top_k=values["num_experts_per_tok"], load_balance_coeff=1e-3,
            moe_comm_backend="standard", rope=rope)
        for layer in layers:
            layer.attention.inner_attention = attention_with_sums()
    else:
        rope = CosSinRoPE.Config(dim=values["head_dim"], max_seq_len=row["seq"], theta=1000000.0)
        own = {"head_dim": values["head_dim"], "rope": rope}
        experts = {"moe_hidden_dim": values.get("moe_intermediate_size"), "num_experts": values.get("num_experts"), "top_k": values.get("num_experts_per_tok"), "moe_comm_backend": "standard"}
        model = qwen3.Qwen3Model
        layers = qwen3._build_qwen3_moe_layers(**grouped, **own, **experts) if family == "qwen3_moe" else qwen3._build_qwen3_layers(**grouped, **own, hidden_dim=values["intermediate_size"])
    return model.Config(
        dim=dim, vocab_size=vocabulary, layers=layers, norm=RMSNorm.Config(normalized_shape=dim, param_init={}),
        tok_embeddings=Embedding.Config(num_embeddings=vocabulary, embedding_dim=dim, param_init={}), lm_head=Linear.Config(in_features=dim, out_features=vocabulary, param_init={}))


def make(row):
    """The model in fp32 and its function step(tokens, labels): forward and backward as torchtitan's Trainer runs them without a CUDA graph."""
    import torch
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss

    model = model_config(row).build()
    for layer in model.layers.values():
        if getattr(layer, "moe_enabled", False):
            gate = layer.moe.router.gate  # autocast to fp32, which a CPU does not do
            gate.forward = lambda x, gate=gate: torch.nn.functional.linear(x.float(), gate.weight.float(), None if gate.bias is None else gate.bias.float())
    of_all = CrossEntropyLoss.Config(global_vocab_size=config_of(row)["vocab_size"])
    in_parts = row["parts"] > 1
    loss_of = (ChunkedLossWrapper.Config(num_chunks=row["parts"], loss_fn=of_all) if in_parts else of_all).build(compile_config=None)
    if in_parts:
        model._skip_lm_head = True
        loss_of.set_lm_head(model.lm_head)
    count = torch.tensor(float(row["batch"] * row["seq"] * row["world"]))

    def step(ids, labels):
        predicted = model(ids)
        loss, _ = loss_of(predicted, labels, count)
        del predicted
        loss.backward()

    return model, step


def shard(model, row, mesh, dtypes):
    import torch
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

    policy = (SelectiveAC if row["checkpoint"] == "selective" else FullAC)
    for i in checkpointed(row):
        wrapped = policy(policy.Config())._wrap_block(model.layers[str(i)], base_fqn=f"layers.{i}")
        model.layers.register_module(str(i), wrapped)
    reshard = {None: "default", True: "always", False: "never"}[row["reshard"]]
    param, reduced = dtypes or ("float32", "float32")
    apply_fsdp_to_decoder(model, mesh, getattr(torch, param), getattr(torch, reduced), pp_enabled=False, reshard_after_forward_policy=reshard)


# --- collectives


def note_collectives(log):
    """Collectives of FSDP2 go to the log as [kind, unit, bytes]: units with their names in transformers, bytes of the larger one of input and output."""
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    unit = []

    def name_of(parameters):
        names = {each._param_fqn.replace("_checkpoint_wrapped_module.", "") for each in parameters}
        first = min(names)
        return ("model.embed_tokens" if first.startswith("tok") else "model.norm, lm_head" if first.startswith(("norm", "lm_head")) else "model." + ".".join(first.split(".")[:2]))

    for name in ("foreach_all_gather", "foreach_reduce"):
        def noted(parameters, *args, _inner=getattr(_fsdp_param_group, name), **kwargs):
            unit[:] = [name_of(parameters)]
            return _inner(parameters, *args, **kwargs)

        setattr(_fsdp_param_group, name, noted)
    for name, kind, side in (("all_gather_single", "all_gather", "output"), ("reduce_scatter_single", "reduce_scatter", "input")):
        def issued(*args, _inner=getattr(dist, name), _kind=kind, _side=side, **kwargs):
            tensor = kwargs[_side] if _side in kwargs else args[0]
            log.append([_kind, unit[0], tensor.numel() * tensor.element_size()])
            return _inner(*args, **kwargs)

        setattr(dist, name, issued)


def run(row, log, note_modules):
    """The second step of the configuration; the first one initialises FSDP."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=row["world"], store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (row["world"],))
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, step = make(row)
            shard(model, row, mesh, DTYPES[row["dtype"]])
            if note_modules:
                for number, layer in model.layers.items():
                    layer.register_forward_pre_hook(lambda *args, number=number: log.append(f"  forward of layer {number}"))
                    for part in ("feed_forward", "attention"):
                        getattr(layer, part).register_full_backward_pre_hook(lambda *args, number=number, part=part: log.append(f"  backward of {part} of layer {number} begins"))
                model.lm_head.register_forward_pre_hook(lambda *args: log.append("  forward of the head"))
            ids = torch.zeros(row["batch"], row["seq"], dtype=torch.long)
            for _ in range(2):
                log.clear()
                step(ids, ids)
    finally:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "show"))
    parser.add_argument("file", nargs="?", help="of record")
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--whole-loss", action="store_true")
    options = parser.parse_args()
    package = prepare(options.folder)
    import torch

    log = []
    note_collectives(log)
    if options.what == "show":
        run({**DEFAULT, "parts": 1 if options.whole_loss else 8}, log, True)
        return print("\n".join(each if isinstance(each, str) else f"{each[0]} of {each[1]}, {each[2]} bytes" for each in log))
    rows = {}
    for name, row in recorded().items():
        run(row, log, False)
        dtypes = dict(zip(("param_dtype", "reduce_dtype"), ({"bfloat16": "bf16", "float32": "fp32"}[each] for each in DTYPES[row["dtype"]])))
        rows[name] = {**row, "config": config_of(row), "plan": {**plan_of(row), "mixed_precision": dtypes}, "collectives": list(log)}
    origin = f"torch {torch.__version__.split('+')[0]}, {package}, by tests/tools/torchtitan_03_program.py record"
    text = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
    Path(options.file).write_text(f'{{"origin": {json.dumps(origin)},\n "rows": {{\n{text}\n}}}}\n')


if __name__ == "__main__":
    main()
