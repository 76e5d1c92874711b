"""Writes tests/data/checkpointed_gemms.json: the products of one backward under non-reentrant activation checkpointing.

    python tests/tools/checkpointed_gemms.py tests/data        (torch 2.11, transformers 5.23)

Per model of tests/data/models and glob of checkpointed modules: [name, m, n, k, batch] of every aten::mm, aten::addmm and
attention that backward runs, recomputed ones included, in order.
"""

import fnmatch
import json
import os
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from transformers import AutoConfig, AutoModelForCausalLM

BATCH, SEQ = 2, 16
CASES = [
    ("llama-untied", "model.layers.*"), ("llama-untied", "model.layers.*.mlp"), ("llama-untied", "model.layers.*.self_attn"),
    ("llama-untied", "model.layers.1"), ("llama-untied", "model"), ("llama-biases", "model.layers.*"),
    ("gpt2-untied-inner", "transformer.h.*"), ("gpt2-untied-inner", "transformer.h.*.attn"), ("gpt2-tied", "transformer.h.*.mlp"),
]


class Products(TorchDispatchMode):
    """Records products below autograd: the operator at which recomputation stops begins above, but does not run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name == "aten.mm.default":
            self.found.append(["aten::mm", args[0].shape[0], args[1].shape[1], args[0].shape[1], 1])
        elif name == "aten.addmm.default":
            self.found.append(["aten::addmm", args[1].shape[0], args[2].shape[1], args[1].shape[1], 1])
        elif name == "aten._scaled_dot_product_flash_attention_for_cpu.default":
            q, k = args[0].shape, args[1].shape
            self.found.append(["aten::scaled_dot_product_attention", q[2], k[2], q[3], q[0] * q[1]])
        return func(*args, **(kwargs or {}))


def wrap(model, glob):
    depth = glob.count(".")
    for fqn, module in list(model.named_modules()):
        if fnmatch.fnmatchcase(fqn, glob) and fqn.count(".") == depth:
            parent = model.get_submodule(fqn.rpartition(".")[0])
            setattr(parent, fqn.rpartition(".")[2], checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT))


def backward(folder, glob):
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    model.config.use_cache = False
    wrap(model, glob)
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ))
    logits = model(tokens).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, config.vocab_size), tokens.reshape(-1))
    with Products() as products:
        loss.backward()
    return products.found


data = sys.argv[1]
rows = [{"model": model, "modules": glob, "batch": BATCH, "seq": SEQ, "backward": backward(os.path.join(data, "models", model), glob)}
        for model, glob in CASES]
with open(os.path.join(data, "checkpointed_gemms.json"), "w") as f:
    f.write("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")
