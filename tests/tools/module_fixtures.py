"""Writes tests/data/models/<name>/{config.json, expected.json} from transformers' own modules.

    python tests/tools/module_fixtures.py tests/data/models [NAME…]        (torch 2.11, transformers 5.23)

expected.json: modules [fqn, class], parameters [fqn, shape] (named_parameters()), aliases {first fqn: [later fqns]}, rope, and the GEMMs of one
step as the profiler records them: [name, m, n, k, batch] of every aten::mm, aten::addmm and aten::bmm, in the order they ran, for
forward (with loss) and backward. expected.json is never written by Shardlens.
"""

import json
import os
import sys
import types

import torch
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32, "intermediate_size": 88,
         "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
CONFIGS = {
    "llama-defaults": {"model_type": "llama"},
    "llama-untied": LLAMA,
    "llama-tied-gqa": {**LLAMA, "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 500000.0},
    "llama-biases": {**LLAMA, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1},
    "llama-head-dim": {**LLAMA, "head_dim": 16, "num_hidden_layers": 3,
                       "rope_scaling": {"type": "linear", "factor": 2.0}, "torch_dtype": "bfloat16"},
    "llama-rope-flat": {**LLAMA, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama-rope-nested": {**LLAMA, "rope_parameters": {"rope_theta": 250000.0, "rope_type": "llama3", **LLAMA3}},
    "gpt2-defaults": {"model_type": "gpt2"},
    "gpt2-tied": GPT2,
    "gpt2-untied-inner": {**GPT2, "tie_word_embeddings": False, "n_inner": 72, "activation_function": "relu", "layer_norm_epsilon": 1e-6},
    "gpt2-mapped-names": {"model_type": "gpt2", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                          "max_position_embeddings": 64, "activation_function": "gelu"},
    "mistral-small": {"model_type": "mistral", **SMALL, "head_dim": 16, "sliding_window": None},
    "qwen2-small": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
    "qwen3-small": {"model_type": "qwen3", **SMALL, "head_dim": 16},
    "gemma3-small": {"model_type": "gemma3_text", **SMALL, "head_dim": 16, "sliding_window": 64},
    "phi3-small": {"model_type": "phi3", **SMALL},
    "opt-small": {"model_type": "opt", "vocab_size": 96, "hidden_size": 32, "ffn_dim": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
                  "max_position_embeddings": 64, "dropout": 0.0},
    "opt-post-norm": {"model_type": "opt", "vocab_size": 96, "hidden_size": 32, "ffn_dim": 72, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "max_position_embeddings": 64, "dropout": 0.0, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
}
BATCH, SEQ = 2, 16


class MlpBlock(torch.nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.fc1 = torch.nn.Linear(hidden, inner)
        self.fc2 = torch.nn.Linear(inner, hidden)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class MlpForCausalLM(torch.nn.Module):
    """Family "mlp" of docs/reference/plan.md, implemented independently of Shardlens."""

    def __init__(self, vocab, hidden, layers, inner, tied):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(vocab, hidden)
        self.layers = torch.nn.ModuleList(MlpBlock(hidden, inner) for _ in range(layers))
        self.lm_head = torch.nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return types.SimpleNamespace(logits=self.lm_head(x))


def gemms(model, vocab):
    tokens = torch.randint(0, vocab, (BATCH, SEQ))
    out = {}
    for part in ("forward", "backward"):
        with torch.profiler.profile(record_shapes=True) as profile:
            if part == "forward":
                logits = model(tokens).logits.float()
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), tokens.reshape(-1))
            else:
                loss.backward()
        found = []
        for event in sorted(profile.events(), key=lambda e: e.time_range.start):
            shapes = event.input_shapes
            if event.name == "aten::mm":
                found.append(["aten::mm", shapes[0][0], shapes[1][1], shapes[0][1], 1])
            elif event.name == "aten::addmm":
                found.append(["aten::addmm", shapes[1][0], shapes[2][1], shapes[1][1], 1])
            elif event.name == "aten::scaled_dot_product_attention":
                q, k = shapes[0], shapes[1]
                found.append([event.name, q[2], k[2], q[3], q[0] * q[1]])
        out[part] = found
    return out


def names_and_shapes(model):
    first, aliases = {}, {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            aliases.setdefault(first[id(parameter)], []).append(fqn)
        else:
            first[id(parameter)] = fqn
    return {
        "class": type(model).__name__,
        "modules": [[fqn, type(m).__name__] for fqn, m in model.named_modules()],
        "parameters": [[fqn, list(p.shape)] for fqn, p in model.named_parameters()],
        "aliases": aliases,
    }


def write(folder, expected):
    with open(os.path.join(folder, "expected.json"), "w") as f:
        items = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in expected.items())
        f.write("{\n" + items + "\n}\n")


def make_folder(name, raw):
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(raw, f, indent=1)
        f.write("\n")
    return folder


def describe_mlp(name, tied):
    raw = {"model_type": "mlp", "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 72, "tie_word_embeddings": tied}
    model = MlpForCausalLM(96, 32, 3, 72, tied)
    write(make_folder(name, raw), {**names_and_shapes(model), "batch": BATCH, "seq": SEQ, "gemms": gemms(model, 96)})


def describe(name, raw):
    folder = make_folder(name, raw)
    config = AutoConfig.from_pretrained(folder)
    small = config.hidden_size <= 64
    with torch.device("cpu" if small else "meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    expected = {
        **names_and_shapes(model),
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        "dtype": str(config.dtype).replace("torch.", "") if config.dtype else None,
    }
    if config.model_type == "llama":
        expected["rope"] = dict(config.rope_parameters)
        expected["numbers"] = {k: getattr(config, k) for k in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "max_position_embeddings", "rms_norm_eps", "initializer_range", "hidden_act", "attention_dropout")}
    elif config.model_type == "gpt2":
        expected["numbers"] = {k: getattr(config, k) for k in (
            "vocab_size", "hidden_size", "n_inner", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
            "layer_norm_epsilon", "initializer_range", "activation_function", "resid_pdrop")}
    if small:
        expected["batch"], expected["seq"] = BATCH, SEQ
        expected["gemms"] = gemms(model, config.vocab_size)
    write(folder, expected)


for each, settings in CONFIGS.items():
    if each in sys.argv[2:] or not sys.argv[2:]:
        describe(each, settings)
if not sys.argv[2:]:
    describe_mlp("mlp-untied", False)
    describe_mlp("mlp-tied", True)
