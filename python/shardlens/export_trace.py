"""Records the operators of one training step on fake tensors: no weights, no GPU, nothing is computed."""
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .export_operators import NO_KERNEL, kind_of, products_of, traffic
from .export_values import Unknown, Values
from .live_units import autograd_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

_SKIPPED = ("prim::", "prims::")


def _arguments(func: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of an ATen operator by name."""
    named = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    named.update(zip((a.name for a in func._schema.arguments), args))
    named.update(kwargs)
    return named


def _tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def _make_mode() -> Any:
    """The dispatch mode below; a function, because torch is imported only when it is used."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __init__(self, tracer: Any) -> None:
            super().__init__()
            self.tracer = tracer

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.tracer.dispatch(torch, func, args, kwargs or {})

    return Mode


class Tracer:
    """Keeps the values that are known, and records a step while `recording`.

    After a step: `tensors`, `operators` and `order` as in model.json (`shardlens docs model`), `missing`, and `trained`, the storages of gradients.
    """

    def __init__(self, fake_mode: Any, experts: tuple[int, int] | None = None) -> None:
        self.values = Values(experts)
        self.missing: list[Any] = []
        self._fake_mode = fake_mode
        self._names: dict[Any, Any] = {}
        self._parameters: set[Any] = set()
        self.recording = False
        self._reset()

    def _reset(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.order: list[str] = []
        self._ids: dict[int, int] = {}
        self._tensor_ids: dict[tuple[int, int, str], int] = {}
        self._pairs: dict[Any, Any] = {}
        self._storages: list[Any] = []  # kept, so that their addresses are not used again
        self._by_sequence: dict[Any, Any] = {}  # operator of forward by the number of the autograd node that it made
        self._saves: dict[Any, Any] = {}  # tensors by the number of the node that keeps them
        self._in_backward = False
        self._last = None  # operator of forward whose gradient is computed
        self._modules = [""]

    # --- what is known about the model

    def know(self, model: Any) -> None:
        """Names of modules (the first, if there are several) and the memory of parameters."""
        self._names, self._parameters = {}, set()
        for name, module in model.named_modules(remove_duplicate=False):
            self._names.setdefault(id(module), name)
        for parameter in model.parameters():
            self._parameters.add(self._keep(parameter))

    @property
    def module(self) -> Any:
        """The module whose forward runs."""
        return self._modules[-1]

    def say(self, sentence: str) -> None:
        if sentence not in self.missing:
            self.missing.append(sentence)

    # --- a step

    @contextlib.contextmanager
    def modes(self) -> Iterator[Any]:
        import torch.nn.functional as functional

        plain = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = self._fused_attention
        try:
            with self._fake_mode, _make_mode()(self):
                yield self
        finally:
            functional.scaled_dot_product_attention = plain

    def step(self, model: Any, forward: Any) -> None:
        """Records `forward()`, which returns the loss, and its backward."""
        import torch
        from torch.nn.modules import module as hooks

        self._reset()
        self._parameters = {self._keep(p) for p in model.parameters()}
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
                self.recording = True
                loss = forward()
            for handle in handles:
                handle.remove()
            self._in_backward = True
            loss.backward()
        finally:
            self.recording = False
            for handle in handles:
                handle.remove()
        self._drop_idle_views()

    def _enter(self, module: Any, args: Any) -> None:
        name = self._names.get(id(module))
        if name is not None and not self._in_backward:
            self._modules.append(name)
            self.order.append(f">{name}")

    def _leave(self, module: Any, args: Any, out: Any) -> None:
        name = self._names.get(id(module))
        if name is not None and not self._in_backward and self._modules[-1] == name:
            self._modules.pop()
            self.order.append(f"<{name}")

    # --- operators

    def dispatch(self, torch: Any, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.removeprefix("aten::")
        inputs = _tensors((args, kwargs))
        known = self.values.wanted(func, inputs)
        dynamic = torch.Tag.dynamic_output_shape in func.tags
        if torch.Tag.data_dependent_output in func.tags:
            return self._value(func, args, kwargs, known)
        if name in ("index", "masked_select") and not known:
            args, known = self._indices_of_masks(torch, name, args), False
            func, name = (torch.ops.aten.index.Tensor, "index") if name == "masked_select" else (func, name)
            dynamic = any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
        elif name == "bincount" and not known:
            return self._counts(torch, args, kwargs)
        if dynamic:
            if not known:
                raise Unknown(self._unknown(func))
            out, real = self._from_values(func, args, kwargs)
            self.values.note(out, real)
        else:
            out = func(*args, **kwargs)
            if known and self.values.is_small(out):
                self.values.note(out, self.values.compute(func, args, kwargs))
            else:
                self._forget_written(func, args)
                self.values.route(name, args, out)
        if self.recording:
            self._record(func, name, args, kwargs, inputs, _tensors(out))
        return out

    def _forget_written(self, func: Any, args: Any) -> None:
        if func._schema.is_mutable:
            for argument, tensor in zip(func._schema.arguments, args):
                if argument.alias_info is not None and argument.alias_info.is_write and hasattr(tensor, "untyped_storage"):
                    self.values.forget(tensor)

    def _unknown(self, func: Any) -> str:
        return (f"module '{self._modules[-1]}': what {func._schema.name} returns depends on data; "
                "declare the routing of experts with --experts COUNT,PER_TOKEN, or avoid the operator")

    def _value(self, func: Any, args: Any, kwargs: Any, known: Any) -> Any:
        """A number that Python asks for."""
        if known:
            return self.values.compute(func, args, kwargs)
        tensors = _tensors(args)
        if tensors and tensors[0].dtype.is_floating_point is False and str(tensors[0].dtype) == "torch.bool":
            self.say(f"module '{self._modules[-1]}' runs other operators if a condition on its data holds; recorded as if it does not")
            return False
        raise Unknown(self._unknown(func))

    def _from_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator whose shape depends on values that are known."""
        from torch.utils._pytree import tree_map

        import torch

        real = self.values.compute(func, args, kwargs)
        out = tree_map(lambda t: self._fake_mode.from_tensor(t, static_shapes=True) if isinstance(t, torch.Tensor) else t, real)
        return out, real

    def _indices_of_masks(self, torch: Any, name: str, args: Any) -> Any:
        """Masks that are known, as the indices that they choose."""
        indices = [args[1]] if name == "masked_select" else args[1]
        out = []
        for each in indices:
            real = self.values.of(each) if each is not None and each.dtype in (torch.bool, torch.uint8) else None
            if real is None:
                out.append(each)
                continue
            from torch._subclasses.fake_tensor import unset_fake_temporarily

            with unset_fake_temporarily():
                chosen = real.nonzero(as_tuple=True)
            for part in chosen:
                fake = self._fake_mode.from_tensor(part, static_shapes=True)
                self.values.set(fake, part)
                out.append(fake)
        return args[0], out

    def _counts(self, torch: Any, args: Any, kwargs: Any) -> Any:
        """bincount of unknown numbers: known only under declared routing, where all are equal."""
        least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
        if self.values.experts is None or least != self.values.experts[0]:
            raise Unknown(self._unknown(torch.ops.aten.bincount.default))
        out = torch.empty(least, dtype=torch.int64, device=args[0].device)
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily():
            real = torch.arange(args[0].numel()).remainder(least).bincount(minlength=least)
        self.values.set(out, real)
        self.values.routed = True
        return out

    def _record(self, func: Any, name: str, args: Any, kwargs: Any, inputs: Any, outputs: Any) -> None:
        if not outputs or name in NO_KERNEL or func._schema.name.startswith(_SKIPPED):
            return
        memory = {self._keep(t) for t in inputs}
        view = not func._schema.is_mutable and all(self._keep(t) in memory for t in outputs)
        phase, forward = self._phase()
        named = _arguments(func, args, kwargs)
        made = None if view else products_of(name, named, outputs, self._pairs_of)
        kind, products = made or ("other" if view else kind_of(func, name), [None])
        read, written = (0, 0) if view else traffic(name, inputs, outputs)
        for product in products:
            operator = {
                "id": len(self.operators), "name": func._schema.name, "kind": kind, "phase": phase, "module": self._modules[-1] if forward is None else self.operators[forward]["module"],
                "inputs": [] if view else [self._tensor(t) for t in inputs],
                "outputs": [] if view else [self._tensor(t) for t in outputs],
                "saved": [], "flops": product.flops if product else self._flops(func, args, kwargs, outputs),
                "read_bytes": read, "written_bytes": written, "forward": forward,
            }
            if product is not None:
                operator["product"] = product.sizes
                if product.causal is not None:
                    operator["causal"] = product.causal
            self.operators.append(operator)
            self.order.append(f"o{operator['id']}")
            operator["view"] = view
            if phase == "forward":
                self._last = operator["id"]
                self._by_sequence.setdefault(self._sequence() - 1, operator["id"])
        if len(products) > 1:  # each part writes its own result
            for part, operator in zip(outputs, self.operators[-len(products):]):
                operator["outputs"] = [self._tensor(part)]
                operator["written_bytes"] = written // len(products)

    def _flops(self, func: Any, args: Any, kwargs: Any, outputs: Any) -> int:
        """Of products that have a formula in torch.utils.flop_counter and no sizes here; 0 for everything else."""
        from torch.utils.flop_counter import flop_registry

        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            return 0
        self.say(f"{func._schema.name}: its products have FLOPs, but no sizes")
        return int(formula(*args, **kwargs, out_val=outputs[0] if len(outputs) == 1 else tuple(outputs)))

    @staticmethod
    def _sequence() -> int:
        number: int = autograd_functions()._get_sequence_nr()
        return number

    def _phase(self) -> Any:
        """The phase, and the operator of forward that is differentiated."""
        import torch

        if not self._in_backward:
            return "forward", None
        node = torch._C._current_autograd_node()
        if node is not None:
            found = self._by_sequence.get(node._sequence_nr())
            self._last = found if found is not None else self._last
        return "backward", self._last

    def _save(self, tensor: Any) -> Any:
        """Autograd keeps `tensor` for the operator whose node it makes."""
        if self.recording and not self._in_backward:
            self._saves.setdefault(self._sequence() - 1, []).append(self._tensor(tensor, whole=True))
        return tensor

    def _keep(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._ids:
            self._ids[storage._cdata] = len(self._storages)
            self._storages.append(storage)
        return self._ids[storage._cdata]

    def _tensor(self, tensor: Any, whole: bool = False) -> Any:
        """The number of a tensor, by its memory, size and dtype. `whole`: counts all the memory that a view keeps alive."""
        from .export_operators import extent

        storage = self._keep(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        size = tensor.untyped_storage().nbytes() if whole else extent(tensor)
        key = storage, size, dtype
        if key not in self._tensor_ids:
            self._tensor_ids[key] = len(self.tensors)
            row = {"id": len(self.tensors), "bytes": size, "dtype": dtype, "storage": storage}
            if storage in self._parameters:
                row["parameter"] = True
            self.tensors.append(row)
        return self._tensor_ids[key]

    def _drop_idle_views(self) -> None:
        """Adds what autograd keeps to the operators, and drops views that keep nothing and have no backward of their own."""
        owners = sorted(self._by_sequence)
        for sequence, saved in self._saves.items():
            before = [each for each in owners if each <= sequence] if sequence not in self._by_sequence else [sequence]
            if before:
                kept = self.operators[self._by_sequence[before[-1]]]["saved"]
                kept.extend(each for each in saved if each not in kept)
        used = {o["forward"] for o in self.operators if not o["view"]}
        dropped = {o["id"] for o in self.operators if o["view"] and (o["phase"] == "backward" or not (o["id"] in used or o["saved"]))}
        self.operators = [o for o in self.operators if o["id"] not in dropped]
        self.order = [e for e in self.order if e[0] != "o" or int(e[1:]) not in dropped]
        for operator in self.operators:
            del operator["view"]

    # --- attention

    def _pairs_of(self, mask: Any) -> Any:
        return self._pairs.get(mask.untyped_storage()._cdata)

    def _count_pairs(self, mask: Any) -> Any:
        """How many pairs of a query and a key a mask of booleans allows in a head, if its values are known."""
        real = self.values.of(mask)
        if real is None or mask.dim() < 2:
            return None
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():
            heads = max(real.numel() // (mask.shape[-1] * mask.shape[-2]), 1)
            return int(real.sum()) // heads

    def _fused_attention(self, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0, is_causal: bool = False, scale: Any = None, enable_gqa: bool = False) -> Any:
        """The kernel that a GPU takes for scaled_dot_product_attention; on the CPU PyTorch would often take none."""
        import torch

        if query.dim() != 4:
            shape = query.shape[:-1]
            query, key, value = ((t.reshape(-1, 1, *t.shape[-2:]) if t.dim() != 4 else t) for t in (query, key, value))
            out = self._fused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            return out.reshape(*shape, value.shape[-1])
        if attn_mask is None and query.shape[-1] == value.shape[-1]:
            return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if key.shape[1] != query.shape[1]:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        if attn_mask is not None:
            shape = (*query.shape[:-1], key.shape[-2])
            pairs = self._count_pairs(attn_mask) if attn_mask.dtype == torch.bool else None
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
            attn_mask = attn_mask.expand(shape)
            if pairs is not None:
                self._keep(attn_mask)
                self._pairs[attn_mask.untyped_storage()._cdata] = pairs
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale)[0]
