"""A training step of torchtitan's models for memory_tracker.py: torchtitan's own modules, loss and activation checkpointing.

Needs the packages that `pip install --target DIR --no-deps torchtitan==0.2.2 tyro docstring_parser typeguard torchdata einops` installs. What its imports need besides is not used here and is replaced by empty modules. Some functions are a GPU's kernels on fake tensors of a
CPU: RMSNorm (aten::_fused_rms_norm, which is several operators on a CPU) and the permutation of tokens to experts, which reads counts that fake tensors do not have.
"""
import importlib.machinery
import sys
import types

UNUSED = ("torch.utils.tensorboard", "datasets", "datasets.distributed", "tokenizers")
SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": False,
         "max_position_embeddings": 4096}
LATENT = {"q_lora_rank": 384, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_shared_experts": 1, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 704, "first_k_dense_replace": 1}
# As config.json has them; made by torchtitan with its own arguments.
MODELS = {
    "llama": {"model_type": "llama", "vocab_size": 32000, **SHAPE},
    "llama-bytes": {"model_type": "llama", "vocab_size": 256, **SHAPE, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32},
    "qwen3": {"model_type": "qwen3", "vocab_size": 65536, **SHAPE},
    "qwen3-bytes": {"model_type": "qwen3", "vocab_size": 256, **SHAPE, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32},
    "deepseek": {"model_type": "deepseek_v3", "vocab_size": 32000, **SHAPE, "num_key_value_heads": 16, **LATENT, "first_k_dense_replace": 8},
    "deepseek_moe": {"model_type": "deepseek_v3", "vocab_size": 32000, **SHAPE, "num_key_value_heads": 16, **LATENT},
    "qwen3_moe": {"model_type": "qwen3_moe", "vocab_size": 32000, **SHAPE, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 704, "decoder_sparse_step": 1,
                  "mlp_only_layers": []},
}
# Of torchtitan 0.3 only. Its heads are those of the published models.
MODELS["gpt_oss"] = {"model_type": "gpt_oss", "vocab_size": 32000, **SHAPE, "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 704, "num_local_experts": 8,
                     "num_experts_per_tok": 2, "sliding_window": 128}
MODELS["gpt_oss-bytes"] = {**MODELS["gpt_oss"], "vocab_size": 256}
for _name in ("llama", "qwen3"):
    MODELS[f"{_name}-small"] = {**MODELS[_name], "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 4}
MODELS["deepseek_moe-bytes"] = {**MODELS["deepseek_moe"], "vocab_size": 256}
MODELS["qwen3_moe-bytes"] = {**MODELS["qwen3_moe"], "vocab_size": 256}
DEFAULT = {"model": "llama", "layers": 3, "world": 8, "batch": 2, "seq": 1024, "dtype": "mixed", "checkpoint": "none", "reshard": None, "units": "torchtitan", "optimizer": "fused"}
SELECTIVE = ["attention", "every_second_product"]


def configurations():
    """Changes of DEFAULT, by name."""
    rows = []
    for model in ("llama", "qwen3", "llama-bytes", "qwen3-bytes"):
        for dtype in ("mixed", "bf16", "fp32"):
            rows.append({"model": model, "dtype": dtype})
        for checkpoint in ("all", "second", "selective"):
            rows.append({"model": model, "checkpoint": checkpoint, "layers": 4})
        rows.append({"model": model, "checkpoint": "selective", "layers": 6, "world": 64, "batch": 1, "seq": 4096})
    for model in ("deepseek", "deepseek_moe", "qwen3_moe"):
        for change in ({"dtype": "mixed"}, {"dtype": "bf16"}, {"checkpoint": "all"}, {"checkpoint": "selective", "layers": 4}):
            rows.append({"model": model, **change})
    for model in ("deepseek_moe-bytes", "qwen3_moe-bytes"):
        for change in ({"dtype": "mixed"}, {"checkpoint": "all"}, {"checkpoint": "selective", "layers": 4}):
            rows.append({"model": model, **change})
    rows.append({"model": "llama", "reshard": True, "world": 2})
    rows.append({"model": "llama", "reshard": False, "layers": 4, "seq": 512})
    rows.append({"model": "llama", "optimizer": "foreach", "layers": 4})
    rows.append({"model": "llama", "world": 2, "batch": 1, "seq": 128})
    return {" ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in row.items()): {**DEFAULT, **row} for row in rows}


def config_of(row):
    return {**MODELS[row["model"]], "num_hidden_layers": row["layers"]}


def checkpointed(row):
    return [i for i in range(row["layers"]) if row["checkpoint"] in ("all", "selective") or (row["checkpoint"] == "second" and i % 2 == 1)]


def plan_of(row):
    """apply_fsdp of torchtitan: the last unit keeps its parameters after forward, unless the policy is "always"."""
    root = {"modules": ""}
    return {"version": 1, "layout": "per_parameter", "reshard_after_forward": row["reshard"] is not False, "activation_checkpointing": [f"model.layers.{i}" for i in checkpointed(row)],
            "checkpointing_saves": SELECTIVE if row["checkpoint"] == "selective" else [],
            "units": [{"modules": "model.embed_tokens"}, {"modules": "model.layers.*"},
                      {"modules": ["model.norm", "lm_head"], "reshard_after_forward": row["reshard"] is True}, {**root, "reshard_after_forward": None}]}


class _Empty(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True) if name in UNUSED else None

    @staticmethod
    def create_module(spec):
        return _Empty(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def fused_norm():
    """aten::_fused_rms_norm as on a GPU: one kernel, which saves its input and a number for each row (tools/autograd/derivatives.yaml)."""
    import torch

    class FusedRmsNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight, torch.empty(*x.shape[:-1], 1, dtype=torch.float32))
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx, grad):
            x, weight, _ = ctx.saved_tensors
            return torch.empty_like(x), torch.empty_like(weight)

    return FusedRmsNorm


def importable():
    """Makes torchtitan importable where some packages that it imports and does not use here are missing."""
    sys.meta_path.insert(0, _Finder)


def prepare(folder):
    """Makes torchtitan importable from the folder, and its RMSNorm and experts run a GPU's kernels. Returns its version."""
    import importlib.metadata

    import torch

    sys.path.append(folder)
    importable()
    norm = fused_norm()
    torch.nn.functional.rms_norm = lambda x, shape, weight=None, eps=None: norm.apply(x, weight)
    torch.histc = lambda values, bins, **range: torch.zeros(bins, dtype=values.dtype)  # not for integers of a CPU
    from torchtitan.models.moe import utils

    utils.generate_permute_indices = lambda counts, groups, ranks, size, alignment: (torch.zeros(size, dtype=torch.int32), counts[:groups], counts)
    return f"torchtitan {importlib.metadata.version('torchtitan')}"


def make(row):
    """The model in fp32 and its function step(tokens, labels): forward and backward; returns the loss."""
    import torch
    from torchtitan.components.loss import cross_entropy_loss

    values = config_of(row)
    shape = {"dim": values["hidden_size"], "n_layers": values["num_hidden_layers"], "n_heads": values["num_attention_heads"], "vocab_size": values["vocab_size"], "max_seq_len": row["seq"]}
    family = values["model_type"]
    if family == "llama":
        from torchtitan.models.llama3.model.args import TransformerModelArgs
        from torchtitan.models.llama3.model.model import Transformer

        factor = values["intermediate_size"] / int(8 * values["hidden_size"] / 3)
        model = Transformer(TransformerModelArgs(**shape, n_kv_heads=values["num_key_value_heads"], multiple_of=1, ffn_dim_multiplier=factor + 1e-6))
    elif family in ("qwen3", "qwen3_moe"):
        from torchtitan.models.moe import MoEArgs
        from torchtitan.models.qwen3.model.args import Qwen3ModelArgs
        from torchtitan.models.qwen3.model.model import Qwen3Model

        sparse = family == "qwen3_moe"
        experts = MoEArgs(num_experts=values["num_experts"], num_shared_experts=0, top_k=values["num_experts_per_tok"], score_func="softmax", route_norm=True,
                          score_before_experts=False, _debug_force_load_balance=True) if sparse else MoEArgs()
        model = Qwen3Model(Qwen3ModelArgs(**shape, n_kv_heads=values["num_key_value_heads"], head_dim=values["head_dim"], hidden_dim=values["intermediate_size"], moe_enabled=sparse,
                                          moe_inter_dim=values.get("moe_intermediate_size", 0), moe_args=experts))
    else:
        from torchtitan.models.deepseek_v3.model.args import DeepSeekV3ModelArgs
        from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model
        from torchtitan.models.moe import MoEArgs

        experts = MoEArgs(num_experts=values["n_routed_experts"], num_shared_experts=values["n_shared_experts"], top_k=values["num_experts_per_tok"], score_func="sigmoid", route_norm=True,
                          score_before_experts=False, _debug_force_load_balance=True)
        arguments = DeepSeekV3ModelArgs(**shape, inter_dim=values["intermediate_size"], moe_inter_dim=values["moe_intermediate_size"], n_dense_layers=values["first_k_dense_replace"],
                                        moe_args=experts, **{key: values[key] for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")})
        arguments.moe_impl = "standard"
        model = DeepSeekV3Model(arguments)
    tokens = torch.tensor(float(row["batch"] * row["seq"] * row["world"]))

    def step(ids, labels):
        logits = model(ids)
        loss = cross_entropy_loss(logits, labels) / tokens
        del logits
        loss.backward()
        return loss

    return model, step


def shard(model, row, mesh, dtypes):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torchtitan.config.job_config import ActivationCheckpoint
    from torchtitan.distributed.activation_checkpoint import _apply_op_sac
    from torchtitan.models.llama3.infra.parallelize import _op_sac_save_list

    settings = ActivationCheckpoint(mode="selective", selective_ac_option="op")
    for i in checkpointed(row):
        name = str(i)
        layer = model.layers[name]
        wrapped = (_apply_op_sac(layer, settings, base_fqn=f"layers.{i}", op_sac_save_list=_op_sac_save_list) if row["checkpoint"] == "selective" else
                   checkpoint_wrapper(layer, preserve_rng_state=settings.preserve_rng_state, early_stop=settings.early_stop))
        model.layers.register_module(name, wrapped)
    given = {"mesh": mesh}
    if dtypes is not None:
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, dtypes[0]), reduce_dtype=getattr(torch, dtypes[1]))
    reshard = row["reshard"] is not False
    fully_shard(model.tok_embeddings, **given, reshard_after_forward=reshard)
    for layer in model.layers.values():
        fully_shard(layer, **given, reshard_after_forward=reshard)
    fully_shard([model.norm, model.output], **given, reshard_after_forward=row["reshard"] is True)
    fully_shard(model, **given)
