"""Runs the attention kernel of a GPU on a CPU, for programs of several ranks over Gloo.

On a GPU scaled_dot_product_attention calls aten::_scaled_dot_product_flash_attention, for which context_parallel has its own code for DTensors; on a CPU it calls
another operator, which context_parallel does not know. Here the operator of the GPU runs the CPU's kernel, and scaled_dot_product_attention calls it.
"""
import torch

aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")


def _as_many(query, tensor):
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], dim=1)


def _forward(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(query, _as_many(query, key), _as_many(query, value), dropout_p, is_causal, scale=scale)
    nothing = torch.empty((), dtype=torch.int64)
    return out, logsumexp, None, None, query.shape[2], key.shape[2], nothing, nothing, torch.empty(0)


def _backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, *, scale=None):
    grads = aten._scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, _as_many(query, key), _as_many(query, value), out, logsumexp, dropout_p, is_causal, scale=scale)
    batch, heads, seq, width = key.shape
    return grads[0], *(grad.reshape(batch, heads, -1, seq, width).sum(2) for grad in grads[1:])


def use():
    """Until the process ends."""
    _library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
    _library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention  # context_parallel replaces it by its name
