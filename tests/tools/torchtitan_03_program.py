"""Prints the order of FSDP2's collectives in a step of torchtitan 0.3, which computes head and loss in parts and differentiates each at once.

    PYTHONPATH=DIR python tests/tools/torchtitan_03_program.py DIR [--whole-loss]

Needs torch 2.15 and the packages that `pip install --target DIR --no-deps torchtitan==0.3.0 spmd_types==0.2.3 torch_checkpointing tyro docstring_parser typeguard torchdata einops` installs.
The model is a Llama of three layers on a fake process group of 8 ranks, in fake tensors: nothing is computed. `--whole-loss`: with torchtitan's loss of all tokens at once.
Attention is scaled_dot_product_attention instead of flex attention, which runs only compiled.
"""
import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python"), str(Path(__file__).resolve().parent)]

import torchtitan_program

SHAPE = {"dim": 1024, "n_layers": 3, "n_heads": 16, "n_kv_heads": 8, "hidden_dim": 2816}
VOCABULARY, SAMPLES, TOKENS, RANKS = 32000, 2, 1024, 8


def model_config():
    """torchtitan's own description of the model, made as its registry makes those of published models."""
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention

    llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()
    dim = SHAPE["dim"]
    rope = ComplexRoPE.Config(dim=dim // SHAPE["n_heads"], max_seq_len=TOKENS, theta=500000.0)
    return llama3.Llama3Model.Config(
        dim=dim, vocab_size=VOCABULARY, layers=llama3._build_llama3_layers(**SHAPE, attn_backend="", rope=rope), norm=RMSNorm.Config(normalized_shape=dim, param_init={}),
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=dim, param_init={}),
        lm_head=Linear.Config(in_features=dim, out_features=VOCABULARY, param_init={}))


def note_collectives(log):
    """Collectives go to the log with the first parameter of their unit."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    for name, shown in (("foreach_all_gather", "all-gather"), ("foreach_reduce", "reduce-scatter")):
        def noted(parameters, *args, _inner=getattr(_fsdp_param_group, name), _shown=shown, **kwargs):
            log.append(f"{_shown} of the unit of {parameters[0]._param_fqn}")
            return _inner(parameters, *args, **kwargs)

        setattr(_fsdp_param_group, name, noted)


def step_of(model, whole_loss):
    """Forward and backward as torchtitan's Trainer runs them without a CUDA graph."""
    import torch
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss

    of_all = CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
    loss_of = (of_all if whole_loss else ChunkedLossWrapper.Config(loss_fn=of_all)).build(compile_config=None)
    if not whole_loss:
        model._skip_lm_head = True
        loss_of.set_lm_head(model.lm_head)
    count = torch.tensor(float(SAMPLES * TOKENS * RANKS))

    def step(ids):
        predicted = model(ids)
        loss, _ = loss_of(predicted, ids, count)
        del predicted
        loss.backward()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--whole-loss", action="store_true")
    options = parser.parse_args()
    sys.path.append(options.folder)
    torchtitan_program.importable()
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh, log = init_device_mesh("cpu", (RANKS,)), []
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model_config().build()
        apply_fsdp_to_decoder(model, mesh, torch.bfloat16, torch.float32, pp_enabled=False)
        note_collectives(log)
        for number, layer in model.layers.items():
            layer.register_forward_pre_hook(lambda *args, number=number: log.append(f"  forward of layer {number}"))
            for part in ("feed_forward", "attention"):
                getattr(layer, part).register_full_backward_pre_hook(lambda *args, number=number, part=part: log.append(f"  backward of {part} of layer {number} begins"))
        model.lm_head.register_forward_pre_hook(lambda *args: log.append("  forward of the head"))
        step, ids = step_of(model, options.whole_loss), torch.zeros(SAMPLES, TOKENS, dtype=torch.long)
        for _ in range(2):  # the first one initialises FSDP
            log.clear()
            step(ids)
    print("\n".join(log))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
