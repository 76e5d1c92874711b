"""Records every collective that a PyTorch program issues in a step, with the module that issues it and where it is waited for.

Used by tensor_programs.py and expert_programs.py; tests/data/RECORDED.md has the format of what they write. The rows are what DTensor, FSDP2 and
torch.distributed call: a dispatch mode sees the operators of c10d and _c10d_functional, and nothing of the program's control flow changes.
"""
import contextlib
import functools
import json
import math
import os
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

# Of a row, in order. in, out: bytes of the rank's own tensor before and after the collective, a list by rank where ranks differ.
COLUMNS = ("kind", "group", "dtype", "in", "out", "microbatch", "phase", "module", "node", "products", "wait")
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "int64", torch.int32: "int32", torch.bool: "bool", torch.float64: "fp64"}
# Operator: kind, place of the input, of the output (-1: the result), of the group.
FUNCTIONAL = {
    "all_gather_into_tensor": ("all_gather", 0, -1, 2), "reduce_scatter_tensor": ("reduce_scatter", 0, -1, 3), "all_reduce": ("all_reduce", 0, -1, 2),
    "all_reduce_": ("all_reduce", 0, -1, 2), "all_to_all_single": ("all_to_all", 0, -1, 3), "broadcast": ("broadcast", 0, -1, 2), "broadcast_": ("broadcast", 0, -1, 2),
}
C10D = {
    "_allgather_base_": ("all_gather", 1, 0, 2), "allgather_": ("all_gather", 1, 0, 2), "_reduce_scatter_base_": ("reduce_scatter", 1, 0, 2),
    "allreduce_": ("all_reduce", 0, 0, 1), "alltoall_base_": ("all_to_all", 1, 0, 2), "alltoall_": ("all_to_all", 1, 0, 2), "broadcast_": ("broadcast", 0, 0, 1),
    "send": ("send", 0, 0, 1), "recv_": ("receive", 0, 0, 1), "barrier": ("barrier", 0, 0, 1),
}
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
            "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_efficient_attention_backward")
VIEWS = ("view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "split", "split_with_sizes", "unsqueeze", "squeeze", "alias", "detach", "as_strided",
         "chunk", "unbind")


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_of(each)]
    return []


def bytes_of(value):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(value))


class Modules:
    """Which module runs, in forward from its call and in backward from the autograd node that was made in its call."""

    def __init__(self, model):
        names = {}
        for name, module in model.named_modules():
            names.setdefault(id(module), ".".join(part for part in name.split(".") if part != "_checkpoint_wrapped_module"))
        self.names, self.stack, self.calls = names, [], []
        self.owners = {}
        call = torch.nn.Module.__call__

        @functools.wraps(call)
        def named_call(module, *args, **kwargs):
            name = self.names.get(id(module))
            if name is None:
                return call(module, *args, **kwargs)
            entry = [name, torch.autograd._get_sequence_nr(), math.inf, len(self.stack)]
            self.stack.append(name)
            self.calls.append(entry)
            try:
                return call(module, *args, **kwargs)
            finally:
                self.stack.pop()
                entry[2] = torch.autograd._get_sequence_nr()

        torch.nn.Module.__call__ = named_call
        self.restore = lambda: setattr(torch.nn.Module, "__call__", call)

    def running(self):
        """The module's name, and the name of the autograd node ("" in forward)."""
        node = torch._C._current_autograd_node()
        shown = node.name().rsplit("::", 1)[-1].rstrip(">") if node is not None else ""
        if self.stack:
            return self.stack[-1], ""
        if node is None:
            return "", ""
        number = node._sequence_nr()
        inside = [entry for entry in self.calls if entry[1] <= number < entry[2]]
        return max(inside, key=lambda entry: entry[3])[0] if inside else "", shown


class CollectiveLog(TorchDispatchMode):
    """Rows of COLUMNS while it is entered. `axes`: by name of a mesh axis its process group, those of FSDP first: FSDP calls c10d, other parts of a program
    functional collectives, so that axes which share a process group are told apart."""

    def __init__(self, model, axes):
        super().__init__()
        self.modules, self.rows, self.pending = Modules(model), [], {}
        self.axes = [(axis, group.group_name, dist.get_process_group_ranks(group)) for axis, group in axes.items()]
        self.phase, self.microbatch, self.products, self.waiting, self.ops = "", 0, 0, [], 0

    @contextlib.contextmanager
    def during(self, phase, microbatch=0):
        self.phase, self.microbatch = phase, microbatch
        yield
        self.phase = ""

    def group(self, given, functional):
        if not isinstance(given, str):
            given = (given if isinstance(given, dist.ProcessGroup) else dist.ProcessGroup.unbox(given)).group_name
        ranks = dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(given))
        found = [axis for axis, name, _ in self.axes if name == given] or [axis for axis, _, members in self.axes if members == ranks]
        return found[-1 if functional else 0]

    def current_phase(self):
        return "recompute" if self.phase == "backward" and self.modules.stack else self.phase

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types or any(issubclass(each, dist._functional_collectives.AsyncCollectiveTensor) for each in types):
            return NotImplemented
        namespace, name = function.namespace, function._schema.name.split("::")[1]
        if name == "_wrap_tensor_autograd":
            return function(*args, **(kwargs or {}))
        if namespace == "_c10d_functional" and name == "wait_tensor":
            row = self.pending.pop(args[0].untyped_storage()._cdata, None)
            if row is not None:
                self.waiting.append(row)
            return function(*args, **(kwargs or {}))
        if namespace not in ("_c10d_functional", "c10d"):
            if name not in VIEWS and namespace != "profiler":
                self.end_waits(name)
                self.ops += 1
                self.products += name in PRODUCTS
            return function(*args, **(kwargs or {}))
        kinds = FUNCTIONAL if namespace == "_c10d_functional" else C10D
        if name not in kinds:
            raise RuntimeError(f"unknown collective {namespace}::{name}")
        kind, source, target, group = kinds[name]
        self.end_waits(kind)
        result = function(*args, **(kwargs or {}))
        module, node = self.modules.running()
        out = result if target < 0 else args[target]
        row = [kind, self.group(args[group], namespace == "_c10d_functional"), DTYPES[tensors_of(args[source])[0].dtype], bytes_of(args[source]), bytes_of(out), self.microbatch, self.current_phase(), module, node,
               self.products, None]
        self.rows.append(row)
        if namespace == "_c10d_functional":
            self.pending[result.untyped_storage()._cdata] = row
            row.append(self.ops)
        return result

    def end_waits(self, name):
        """The operator `name` is the first that runs after the waits."""
        if self.waiting:
            module, _ = self.modules.running()
            for row in self.waiting:
                row[10] = [module, name, self.ops - row.pop()]
            self.waiting.clear()

    def take(self):
        self.end_waits("")
        rows, self.rows = [row[:len(COLUMNS)] for row in self.rows], []
        self.pending.clear()
        self.modules.calls.clear()
        self.products = self.ops = 0
        return rows


def merged(ranks):
    """One list of rows of all ranks' lists, which differ in bytes and in what runs before a wait only; the wait is that of rank 0."""
    rows = []
    for index in range(max(map(len, ranks))):
        each = [rows_of[index] if index < len(rows_of) else None for rows_of in ranks]
        alike = {json.dumps([value for column, value in zip(COLUMNS, row) if column not in ("in", "out", "wait")]) if row else None for row in each}
        if len(alike) != 1:
            raise RuntimeError(f"row {index} differs between ranks: {sorted(map(str, alike))}")
        row = list(each[0])
        for column in (3, 4):
            values = [other[column] for other in each]
            row[column] = values[0] if len(set(values)) == 1 else values
        rows.append(row)
    return rows


def document(values, rows):
    """JSON with a row in each line."""
    text = json.dumps({**values, "columns": COLUMNS}, indent=1)
    for key in ("plan", "groups", "columns", "step", "config", "memory", "rows_of_experts"):  # each in one line
        if key in values or key == "columns":
            start = text.index(f'\n "{key}": ') + len(key) + 6
            value, end = json.JSONDecoder().raw_decode(text, start)
            text = text[:start] + json.dumps(value) + text[end:]
    return text[:-2] + ',\n "collectives": [\n' + ",\n".join("  " + json.dumps(row) for row in rows) + "\n ]\n}\n"


def _rank_main(rank, world, scratch, work):
    warnings.filterwarnings("ignore")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
    try:
        with open(f"{scratch}/{rank}.json", "w") as file:
            json.dump(work(), file)
    finally:
        dist.destroy_process_group()


def run_on_ranks(world, work):
    """The results of `work()` on each of `world` Gloo ranks, which are forks of this process."""
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.start_processes(_rank_main, (world, scratch, work), nprocs=world, start_method="fork")
        found = []
        for rank in range(world):
            with open(f"{scratch}/{rank}.json") as file:
                found.append(json.load(file))
    return found
