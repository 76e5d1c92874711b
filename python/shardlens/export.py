"""Exports any PyTorch model as model.json (`shardlens docs model`), which plan, simulate, search and the app take as --model.

    python -m shardlens.export --hf DIR --out model.json                       a model of transformers, by the config.json in DIR
    python -m shardlens.export --call pkg.mod:make_model --out model.json      what a function of yours returns

Nothing is computed: tensors are fake, so that a model of any size needs no weights, no GPU and little memory. One step (forward, loss,
backward) is recorded at two batches; every other batch follows from these.

`make_model()` returns a torch.nn.Module and a function `inputs(batch)` or `inputs(batch, seq)` that makes its arguments: a tensor, a tuple, or
a dict of keywords. A third result `loss(output)` is needed where the model returns neither a scalar nor something with a `loss`.
"""
from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, files
from .shown import complain, complain_lines, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DTYPES = ("bfloat16", "float16", "float32")


class ExportError(RuntimeError):
    """The model cannot be exported; the message says why. Exit code 3."""


class Source:
    """A model and how to run it. `inputs(batch, seq)`: arguments and keywords; `loss(output)`; `seq`: None if it takes no tokens."""

    def __init__(self, model: Any, inputs: Any, loss: Any, seq: int | None, origin: Any, experts: tuple[int, int] | None = None) -> None:
        self.model, self.inputs, self.loss, self.seq, self.origin, self.experts = model, inputs, loss, seq, origin, experts


def _loss_of(out: Any) -> Any:
    import torch

    loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    loss = out if loss is None and isinstance(out, torch.Tensor) and out.dim() == 0 else loss
    if loss is None or not isinstance(loss, torch.Tensor):
        raise ExportError(f"the model returns {type(out).__name__} and no loss; expected a scalar, something with a loss, or a function loss(output) from the factory")
    return loss


# --- transformers


def _experts_of(config: Any) -> Any:
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        count = getattr(config, name, None)
        if count:
            return count, getattr(config, "num_experts_per_tok", None) or 1
    return None


def _decide_as_if_not_traced() -> None:
    """With fake tensors transformers makes masks that a real step does without. Their values are known here, so it need not."""
    from transformers import masking_utils

    asks = getattr(masking_utils, "is_tracing", None)
    if asks is not None:
        masking_utils.is_tracing = lambda tensor=None: asks()


def from_transformers(directory: Any, seq: int | None, dtype: Any) -> Any:
    """A Source of the config.json in `directory`, or of the file that it names."""
    import torch

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    path = Path(directory)
    if not path.is_file() and not (path / "config.json").is_file():
        raise ExportError(f"{path}: has no config.json")
    try:
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except (ValueError, KeyError) as error:
        raise ExportError(f"{path}: {error}") from error
    config.dtype = getattr(torch, dtype)
    config.use_cache = False
    _decide_as_if_not_traced()
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    model = kind._from_config(config) if kind is not None else transformers.AutoModelForCausalLM.from_config(config)
    origin = {"source": str(directory), "transformers": transformers.__version__}
    experts = _experts_of(config)
    if model.main_input_name == "pixel_values":
        def images(batch: int, _: Any) -> Any:
            size = config.image_size if isinstance(config.image_size, (tuple, list)) else (config.image_size,) * 2
            return (), {"pixel_values": torch.empty(batch, config.num_channels, *size), "labels": torch.empty(batch, dtype=torch.long)}

        return Source(model, images, _loss_of, None, origin, experts)
    if model.main_input_name != "input_ids" or config.is_encoder_decoder:
        raise ExportError(f"{type(model).__name__}: expected a model of tokens or images; use --call with a function that makes its inputs")

    def tokens(batch: int, length: int) -> Any:
        ids = torch.empty(batch, length, dtype=torch.long)
        return (), {"input_ids": ids, "labels": torch.empty(batch, length, dtype=torch.long)}

    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None) or 2048
    return Source(model, tokens, _loss_of, seq or min(longest, 2048), origin, experts)


# --- a function of the user


def _arguments(made: Any) -> Any:
    if isinstance(made, dict):
        return (), made
    return (tuple(made), {}) if isinstance(made, (tuple, list)) else ((made,), {})


def from_call(name: str, seq: int | None) -> Any:
    """A Source of the function `pkg.mod:function`."""
    import torch

    module, _, function = name.partition(":")
    if not function:
        raise ExportError(f"--call {name}: expected pkg.mod:function")
    sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"--call {name}: {error}") from error
    made = factory()
    parts: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
    if len(parts) not in (2, 3) or not isinstance(parts[0], torch.nn.Module):
        raise ExportError(f"--call {name}: expected a model and a function that makes its inputs from a batch, and perhaps a function of the loss")
    model, inputs = parts[0], parts[1]
    loss = parts[2] if len(parts) == 3 else _loss_of
    takes_tokens = len(inspect.signature(inputs).parameters) > 1
    if takes_tokens and seq is None:
        raise ExportError(f"--call {name}: the inputs depend on the sequence; --seq is needed")

    def make(batch: int, length: int | None) -> Any:
        return _arguments(inputs(batch, length) if takes_tokens else inputs(batch))

    return Source(model, make, loss, seq if takes_tokens else None, {"source": name})


# --- recording


def _described(args: Any, kwargs: Any) -> dict[str, Any]:
    import torch

    named = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
    return {name: (list(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in named.items() if isinstance(value, torch.Tensor)}


def _input_rows(described: Any, batches: Sequence[int], seq: int | None) -> Any:
    """Inputs with "batch" and "seq" in place of sizes that follow them."""
    rows = []
    for name, (shape, dtype) in described[0].items():
        others = described[-1].get(name, (shape, dtype))[0]
        sizes = []
        for size, other in zip(shape, others):
            moves = len(batches) > 1 and size * batches[-1] == other * batches[0] and size != other
            sizes.append("batch" if moves and size == batches[0] else "seq" if seq is not None and size == seq else size)
        rows.append({"name": name, "shape": sizes, "dtype": dtype})
    return rows


def _step(tracer: Any, source: Any, batch: int) -> Any:
    """One recorded step, and its inputs' shapes."""
    described = {}

    def forward() -> Any:
        args, kwargs = source.inputs(batch, source.seq)
        described.update(_described(args, kwargs))
        return source.loss(source.model(*args, **kwargs))

    source.model.zero_grad(set_to_none=True)
    tracer.step(source.model, forward)
    return {"batch": batch, "seq": source.seq, "tensors": tracer.tensors, "operators": tracer.operators, "order": tracer.order}, described


def export(make_source: Callable[[], Source], batches: Sequence[int] = (2, 4), dtype: str = "bfloat16", experts: tuple[int, int] | None = None) -> dict[str, Any]:
    """The contents of model.json. `make_source()`: a Source; called with fake tensors and `dtype` as the default dtype.

    Errors: ExportError, which names the module, if the model needs values that depend on data."""
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode, UnsupportedOperatorException

    from .export_trace import Tracer
    from .export_values import Unknown
    from .live_model import model_of

    tracer = Tracer(FakeTensorMode(allow_non_fake_inputs=True), experts)
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with tracer.modes():
            source = make_source()
            source.model.train()
            tracer.know(source.model)
            tracer.values.experts = experts or source.experts
            out = model_of(source.model)
            recorded = [_step(tracer, source, batch) for batch in batches]
            unused = [name for name, p in source.model.named_parameters() if p.requires_grad and p.grad is None]
    except Unknown as error:
        raise ExportError(str(error)) from error
    except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
        raise ExportError(f"module '{tracer.module}': {error} is not possible without data") from error
    finally:
        torch.set_default_dtype(before)
    if unused:
        tracer.say(f"{len(unused)} parameters have no gradient, such as '{unused[0]}'")
    steps = [step for step, _ in recorded]
    names = [[o["name"] for o in step["operators"]] for step in steps]
    if any(each != names[0] for each in names):
        tracer.say(f"the model runs other operators with batch {batches[0]} than with batch {batches[-1]}: no other batch follows from these")
    if tracer.values.routed:
        tracer.say("experts are chosen equally often")
    counts = tracer.values.experts
    out.update({
        "dtype": dtype,
        "origin": {"made_by": f"shardlens.export {__version__}", "torch": torch.__version__, **source.origin},
        "inputs": _input_rows([described for _, described in recorded], batches, source.seq),
        "experts": {"count": counts[0], "per_token": counts[1]} if counts else None,
        "steps": steps,
        "missing": tracer.missing,
    })
    return out


def write(contents: Any, path: str | os.PathLike[str]) -> None:
    """Writes model.json."""
    files.write(path, json.dumps(contents, separators=(",", ":")))


def _pair(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError("expected COUNT,PER_TOKEN")
    return int(parts[0]), int(parts[1])


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError("expected a positive number")
    return int(text)


def _is_of_model(path: Path, folder: Path) -> bool:
    """Whether the file is the model's config or weights, by any name."""
    if not path.exists() or not folder.exists():
        return False
    if folder.is_file():
        return folder.samefile(path)
    return any((each.name == "config.json" or each.suffix in (".safetensors", ".bin")) and each.samefile(path) for each in folder.iterdir())


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlens.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--hf", metavar="DIR", help="folder with a config.json of transformers, or such a file")
    source.add_argument("--call", metavar="PKG.MOD:FUNCTION", help="function that makes the model and its inputs")
    parser.add_argument("--batch", type=_positive, default=2, help="samples of the first recorded step; the second has twice as many (default 2)")
    parser.add_argument("--seq", type=_positive, help="tokens of a sample (default: what the model takes, at most 2048)")
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="dtype of the parameters while recording; plans change it (default bfloat16)")
    parser.add_argument("--experts", type=_pair, metavar="COUNT,PER_TOKEN", help="routing of a model whose config does not say it: experts, and how many a token chooses")
    parser.add_argument("--out", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    folder = Path(options.out).parent
    if not folder.is_dir() or Path(options.out).is_dir():  # before the export, which may take minutes
        complain(f"error: --out {options.out}: {f'{folder} is not a folder' if not folder.is_dir() else 'is a folder; expected a file'}")
        return 3
    if options.hf and _is_of_model(Path(options.out), Path(options.hf)):
        complain(f"error: --out {options.out}: is a file of the model that --hf reads; it would be replaced; choose another path")
        return 2
    try:
        if options.hf:
            make = lambda: from_transformers(options.hf, options.seq, options.dtype)  # noqa: E731
        else:
            make = lambda: from_call(options.call, options.seq)  # noqa: E731
        contents = export(make, (options.batch, 2 * options.batch), options.dtype, options.experts)
        write(contents, options.out)
    except ImportError as error:
        complain(f"error: {error}; the export needs torch, and --hf transformers too")
        return 3
    except (ExportError, OSError) as error:
        complain(f"error: {error}")
        return 3
    except Exception as error:  # of the user's code; the traceback says where
        complain_lines(traceback.format_exc())
        complain(f"error: {options.hf or options.call}: {type(error).__name__}: {error}")
        return 3
    for sentence in contents["missing"]:
        complain(f"note: {sentence}")
    step = contents["steps"][0]
    say(f"{options.out}: {contents['name']}, {len(contents['parameters'])} parameters, {len(step['operators'])} operators a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
