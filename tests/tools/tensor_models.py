"""Models of tensor_programs.py, and how torchtitan 0.2.2 and transformers divide them: parallelize_module's styles and the plan's keys of the same meaning.

`make_model` is a program that no family describes; `python -m shardlens.export --call tensor_models:make_model --seq 32` (in tests/tools) makes
tests/data/tensor/decoder/model.json of it.
"""
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

DATA = Path(__file__).resolve().parents[1] / "data"
WIDTH, HEADS, HIDDEN, VOCABULARY, BLOCKS = 48, 4, 104, 192, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        batch, seq = x.shape[:2]
        q, k, v = (each(x).view(batch, seq, -1, WIDTH // HEADS).transpose(1, 2) for each in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, seq, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.narrow(F.gelu(self.widen(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.scores(self.norm(x))


def make_model():
    """For shardlens.export: the model, its inputs and its loss."""
    def inputs(batch, seq):
        return torch.zeros(batch, seq, dtype=torch.long)

    def loss(logits):
        return F.cross_entropy(logits.flatten(0, 1), torch.zeros(logits.shape[0] * logits.shape[1], dtype=torch.long))

    return Decoder(), inputs, loss


# Of a family: the modules' names. Linear layers that are divided by columns and by rows, in a layer; norms between them, those of what is added to the residual, and those over heads.
LLAMA = {"embedding": "model.embed_tokens", "layers": "model.layers", "norm": "model.norm", "head": "lm_head", "norms": ["input_layernorm", "post_attention_layernorm"],
         "heads": [], "attention": "self_attn", "columns": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "row": "self_attn.o_proj", "mlp": "mlp",
         "mlp_columns": ["mlp.gate_proj", "mlp.up_proj"], "mlp_row": "mlp.down_proj"}
NAMES = {
    **dict.fromkeys(["llama-tiny", "qwen2-tiny", "mixtral-tiny"], LLAMA),
    **dict.fromkeys(["qwen3-tiny", "qwen3-moe-tiny"], {**LLAMA, "heads": ["self_attn.q_norm", "self_attn.k_norm"]}),
    # Layers with outputs for several uses: gathered after, and chosen from before the next one, as transformers' own plans for tensor parallelism do.
    "phi3-tiny": {**LLAMA, "columns": [], "mlp_columns": [], "gathered": ["self_attn.qkv_proj", "mlp.gate_up_proj"]},
    "glm4-tiny": {**LLAMA, "sum_norms": ["post_self_attn_layernorm", "post_mlp_layernorm"], "mlp_columns": [], "gathered": ["mlp.gate_up_proj"]},
    "decoder": {"embedding": "table", "layers": "blocks", "norm": "norm", "head": "scores", "norms": ["norm1", "norm2"], "heads": [], "attention": "attention",
                "columns": ["attention.query", "attention.key", "attention.value"], "row": "attention.out", "mlp": "mlp", "mlp_columns": ["mlp.widen"], "mlp_row": "mlp.narrow"},
}


def config_of(row):
    folder = next(each for each in (DATA / row["model"], DATA / "tensor" / row["model"]) if each.exists())
    return {**json.loads((folder / "config.json").read_text()), **row["config"]}


def make(row):
    """The model in fp32, with the same values on every rank, and its function of tokens and positions that returns logits."""
    torch.manual_seed(0)
    if row["model"] == "decoder":
        model = Decoder()
        return model, lambda tokens, positions: model(tokens), VOCABULARY
    values = config_of(row)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config.use_cache = False
    attention = "gathered" if row["mesh"].get("context", 1) > 1 and row["gather"] in ("apart", "joined") else "sdpa"
    # Of the part of the sequence that a rank has, transformers would make a mask for that part. Attention is causal without one.
    ALL_MASK_ATTENTION_FUNCTIONS.register(attention, lambda *args, **kwargs: None)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).train()
    return model, lambda tokens, positions: model(input_ids=tokens, position_ids=positions, use_cache=False).logits, config.vocab_size


def layers_of(model, row):
    return model.get_submodule(NAMES[row["model"]]["layers"])


def styles_of_root(row):
    names = NAMES[row["model"]]
    between = Shard(1) if row["sequence_parallel"] else Replicate()
    logits = Shard(-1) if row["loss_parallel"] else Replicate()
    styles = {names["head"]: ColwiseParallel(input_layouts=between, output_layouts=logits, use_local_output=not row["loss_parallel"])}
    if row["styles"] != "transformers":
        styles[names["embedding"]] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if row["sequence_parallel"]:
        styles[names["norm"]] = SequenceParallel()
    return styles


def styles_of_layer(row):
    names = NAMES[row["model"]]
    # Each rank has some heads: the weights of norms over a head's elements are whole, their gradients are of these heads only.
    styles = {name: SequenceParallel(sequence_dim=2, use_local_output=True) for name in names["heads"]}
    styles |= {name: ColwiseParallel() for name in names["columns"] + names["mlp_columns"]}
    styles |= {name: ColwiseParallel(output_layouts=Replicate()) for name in names.get("gathered", ())}
    split = {name: {"input_layouts": Replicate()} for name in (names["row"], names["mlp_row"]) if any(each.split(".")[0] == name.split(".")[0] for each in names.get("gathered", ()))}
    rows = lambda **layouts: {name: RowwiseParallel(**split.get(name, {}), **layouts) for name in (names["row"], names["mlp_row"])}  # noqa: E731
    if not row["sequence_parallel"]:
        return {**styles, **rows()}
    divided, whole = Shard(1), Replicate()
    by_position = PrepareModuleInput(input_layouts=(divided,), desired_input_layouts=(whole,))
    by_name = PrepareModuleInput(input_kwarg_layouts={"hidden_states": divided}, desired_input_kwarg_layouts={"hidden_states": whole})
    return {**styles, **{name: SequenceParallel() for name in names["norms"]}, **{name: SequenceParallel(use_local_output=True) for name in names.get("sum_norms", ())},
            names["attention"]: by_position if row["model"] == "decoder" else by_name, names["mlp"]: by_position,
            **rows(output_layouts=divided)}


def tensor_parallel_of(row):
    """The plan's key; None: the usual styles, which are those of torchtitan."""
    names = NAMES[row["model"]]
    if row["styles"] == "torchtitan" and row["model"] != "decoder":
        return None
    in_layers = {**{name: "column" for name in names["columns"] + names["mlp_columns"]}, names["row"]: "row", names["mlp_row"]: "row"}
    if row["sequence_parallel"]:
        in_layers |= {name: "sequence" for name in [*names["norms"], *names.get("sum_norms", ())]}
    styles = {f"{names['layers']}.*.{name}": style for name, style in in_layers.items()} | {names["head"]: "column"}
    if row["styles"] != "transformers":
        styles[names["embedding"]] = "vocabulary"
    if row["sequence_parallel"]:
        styles[names["norm"]] = "sequence"
    return styles
