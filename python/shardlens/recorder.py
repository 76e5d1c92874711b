"""Records a PyTorch training run into a run directory that every command of Shardlens reads.

    with shardlens.record("run", model=model, optimizer=optimizer) as rec:
        for batch in data:
            loss = …
            rec.step(loss)

Per rank: `rank<r>.pt.trace.json.gz` (torch.profiler's) and `rank<r>.actions.jsonl` (FSDP2); from rank 0: `plan.json`,
`model.json`, `config.json` of a model of transformers, `run.json`, `metrics.jsonl`. Each appears under its name only when it is complete.

Training is never changed. If anything in here fails, one warning says what, and the run goes on unrecorded.
"""
from __future__ import annotations

import functools
import gzip
import json
import os
import platform
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from . import __version__, files, recording_directory
from .shown import complain, warn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Concatenate, ParamSpec

    import torch

    from .live_settled import Settling

    P = ParamSpec("P")


def record(directory: str | os.PathLike[str], *, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, warmup: int | None = 2,
           steps: int = 3, accumulate: int | None = None, memory: bool = False, stacks: bool = False, force: bool = False) -> Recorder:
    """Records `steps` optimizer steps after `warmup` that are not recorded. Use as a context manager, and call step() once per optimizer step.

    directory    where the run is written; created if it is missing. All ranks of one machine give the same one.
    model        the sharded model: after fully_shard, FullyShardedDataParallel or DistributedDataParallel.
    optimizer    the optimizer, whose kind and settings are recorded.
    warmup       steps before; None: until no rank compiles anything any more, at least 3.
    accumulate   microbatches per step; by default the number of the model's forwards in a recorded step.
    memory       also record allocations (larger traces).
    stacks       also record Python's stacks, with which DDP's buckets get the names of modules (larger traces, slower steps).
    force        replace files in the directory that no mark says this function wrote.
    """
    return Recorder(directory, model, optimizer, warmup, steps, accumulate, memory, stacks, force)


def _guarded(method: Callable[Concatenate[Recorder, P], None]) -> Callable[Concatenate[Recorder, P], None]:
    """A fault in the recorder is a warning, and the end of the recording, never an exception in the training loop."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: P.args, **kwargs: P.kwargs) -> None:
        if self._failed:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            self._give_up(f"{type(error).__name__}: {error}")

    return cast("Callable[Concatenate[Recorder, P], None]", guarded)  # wraps() would lose `self`


class Recorder:
    """What `record` returns. `directory`: where the run is; `recording`: whether the present step is recorded."""

    def __init__(self, directory: str | os.PathLike[str], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, warmup: int | None, steps: int,
                 accumulate: int | None, memory: bool, stacks: bool, force: bool = False) -> None:
        if (warmup is not None and warmup < 1) or steps < 1:
            raise ValueError("record: warmup and steps must be at least 1, because torch.profiler needs a step to start")
        self.directory = Path(directory)
        self.recording = False
        self._model, self._optimizer = model, optimizer
        self._first, self._steps = warmup, steps  # the first recorded step; None: not known yet
        self._settling: Settling | None = None  # while the first recorded step is not known
        self._accumulate, self._memory, self._stacks = accumulate, memory, stacks
        self._force = force
        self._failed = False
        self._profiler: Any = None
        self._log: Any = None
        self._checkpoints: Any = None
        self._activations: Any = None
        self._trained: Any = None
        self._hook: Any = None
        self._step = 0
        self._began = 0.0
        self._metrics: list[tuple[int, Any, float]] = []  # (step, loss, milliseconds)
        self._forwards: list[int] = []  # of each recorded step
        self._without_sync = False  # a recorded microbatch did not reduce its gradients
        self._input_shape: tuple[list[int], bool] | None = None
        self._notes: list[str] = []
        self._written = False

    def __enter__(self) -> Recorder:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Literal[False]:
        self._finish(error)
        return False

    @_guarded
    def step(self, loss: torch.Tensor | float | None = None) -> None:
        """Ends an optimizer step. `loss`: a number or a tensor, which is read only when the recording ends."""
        now = time.perf_counter()
        value: Any = loss
        self._metrics.append((self._step, value.detach() if hasattr(value, "detach") else value, (now - self._began) * 1e3))
        self._step += 1
        self._checkpoints.remove()  # one step shows them all, and none that is recorded is watched
        self._stop_counting()
        if self._settling is not None and self._settling.after_step():
            self._first = self._step + 1  # the profiler needs a step to start
            if self._settling.unsteady:
                self._notes.append(f"step {self._step - 1} still compiled or allocated device memory: the recorded steps may do so too")
            self._settling = None
        self._profiler.step()
        if self._log.failure:
            self._give_up(self._log.failure)
            return
        recorded = self._recorded_steps()
        self._set_recording(recorded is not None and self._step in recorded)
        if recorded is not None and self._step == recorded.stop:
            self._end_window()
        self._began = time.perf_counter()

    @property
    def finished(self) -> bool:
        """Whether the last recorded step has ended, or the recording has failed."""
        recorded = self._recorded_steps()
        return self._failed or (recorded is not None and self._step >= recorded.stop)

    def _recorded_steps(self) -> range | None:
        """None: not known yet."""
        return None if self._first is None else range(self._first, self._first + self._steps)

    def _action(self, step: int) -> torch.profiler.ProfilerAction:
        """What torch.profiler does in a step."""
        from torch.profiler import ProfilerAction

        recorded = self._recorded_steps()
        if recorded is None or not recorded.start - 1 <= step < recorded.stop:
            return ProfilerAction.NONE
        if step < recorded.start:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < recorded.stop - 1 else ProfilerAction.RECORD_AND_SAVE

    @_guarded
    def _start(self) -> None:
        import torch
        import torch.distributed as dist

        from .live_actions import ActionLog
        from .live_activations import ActivationLog
        from .live_checkpoints import CheckpointLog
        from .live_forward import ForwardWatch
        from .live_units import gradient_sync, is_a, unwrap_ddp

        self._rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self._world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if self._first is None:
            from .live_settled import Settling

            self._settling = Settling(self._world)
        recording_directory.claim(self.directory, self._force)
        inner, _ = unwrap_ddp(self._model)
        self._log = ActionLog(self._model)
        self._reduces = gradient_sync(self._model)
        if self._log.missing:
            self._notes.append(f"this version of PyTorch has no {', '.join(self._log.missing)} of FSDP: those actions are not recorded")
        compiled = any(getattr(m, "_compiled_call_impl", None) is not None or is_a(m, "OptimizedModule") for m in self._model.modules())
        if compiled:
            self._notes.append("torch.compile: operators inside a compiled region have no names of modules, and hooks that were compiled leave no actions")
        self._checkpoints = CheckpointLog()
        self._checkpoints.install(compiled)
        if not compiled:  # a compiled region decides itself what it saves
            self._activations = ActivationLog(inner)
            self._activations.install()
        self._hook = ForwardWatch(self._model, self._on_forward)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that events of earlier cycles are dropped: there is one cycle
            self._profiler = torch.profiler.profile(
                activities=activities, record_shapes=True, profile_memory=self._memory, with_stack=self._stacks,
                schedule=self._action, on_trace_ready=self._export)
        self._profiler.start()
        self._began = time.perf_counter()

    def _stop_counting(self) -> None:
        if self._activations is not None:
            self._activations.remove()

    def _set_recording(self, on: bool) -> None:
        self.recording = on
        self._log.recording = on
        if on:
            self._log.begin_step(self._step)
            self._forwards.append(0)
            if self._trained is None:
                from .live_bypassed import TrainedUnits

                self._trained = TrainedUnits(self._model)

    def _on_forward(self, module: Any, args: Any, kwargs: Any) -> None:
        """A forward of the whole model: counted, and its first tensor's shape kept. Changes nothing."""
        if self._failed or not self.recording or not module.training:
            return None
        try:
            self._forwards[-1] += 1
            self._without_sync = self._without_sync or not self._reduces()
            if self._input_shape is None:
                tensors = [v for v in (*args, *kwargs.values()) if hasattr(v, "shape") and hasattr(v, "dtype")]
                if tensors:
                    self._input_shape = (list(tensors[0].shape), tensors[0].is_floating_point())
        except Exception as error:  # noqa: BLE001
            self._give_up(f"{type(error).__name__}: {error}")
        return None

    def _export(self, profiler: Any) -> None:
        """torch.profiler calls this when the last recorded step has ended."""
        if self._failed:
            return
        try:
            path = self.directory / f"rank{self._rank}.pt.trace.json.gz"
            with files.PrivateFolder(self.directory) as folder:  # torch.profiler makes files next to the one that it is asked for
                plain = os.path.join(folder, "trace.json")
                profiler.export_chrome_trace(plain)
                with open(plain, "rb") as source, files.create(path) as packed, gzip.GzipFile("", "wb", 1, packed) as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            self._written = True
        except Exception as error:  # noqa: BLE001
            self._give_up(f"the trace could not be written: {error}")

    def _stop_profiler(self) -> None:
        """Stops torch.profiler once: some versions fault when one that has ended is stopped again."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _end_window(self) -> None:
        """After the last recorded step: the model gets its own methods back, so that later steps run as if nothing had been recorded."""
        trained, self._trained = self._trained, None
        bypassed = trained and trained.bypassed(self._log)
        if bypassed:
            self._notes.append(bypassed)
            if self._rank == 0:
                self._warn(bypassed)
        self._set_recording(False)
        self._checkpoints.remove()
        self._stop_counting()
        self._log.remove()
        self._hook.remove()

    @_guarded
    def _finish(self, error: BaseException | None) -> None:
        self._end_window()
        self._stop_profiler()
        if not self._written and error is None:
            self._warn(f"the run ended after {self._step} steps, before {self._awaited()}: there is no trace")
        rows = list(self._log.lines())
        if rows:
            files.write(self.directory / f"rank{self._rank}.actions.jsonl", "\n".join(rows) + "\n")
        if self._rank == 0:
            self._write_companions(error)

    def _awaited(self) -> str:
        recorded = self._recorded_steps()
        if recorded is None:
            return f"the program had settled and {self._steps} steps were recorded"
        return f"the {recorded.stop} that record() was asked for"

    def _write_companions(self, error: BaseException | None) -> None:
        from .live_model import config_of, model_of
        from .live_plan import NoPlan, left_out, plan_of

        try:
            files.write(self.directory / "plan.json", json.dumps(plan_of(self._model, self._log, self._checkpoints), indent=2) + "\n")
        except NoPlan as reason:
            self._notes.append(f"no plan.json: {reason}")
        except Exception as fault:  # noqa: BLE001  another version of torch keeps things elsewhere; the rest of the recording is good
            self._notes.append(f"no plan.json: {type(fault).__name__}: {fault}")
        else:
            self._notes += left_out(self._model)
        if self._checkpoints.selective:
            self._notes.append("checkpoints with a policy (context_fn) keep some results: plan.json has none of them, as if all ran again")
        if self._activations is not None and self._activations.failure:
            self._notes.append(f"activations were not counted: {self._activations.failure}")
        if self._checkpoints.failure:
            self._notes.append(f"calls of torch.utils.checkpoint were not all seen: {self._checkpoints.failure}")
        files.write(self.directory / "model.json", json.dumps(model_of(self._model)) + "\n")
        try:
            if (config := config_of(self._model)) is not None:
                files.write(self.directory / "config.json", config)
        except Exception as fault:  # noqa: BLE001  the config is another package's
            self._notes.append(f"no config.json: {type(fault).__name__}: {fault}")
        lines = []
        for step, loss, milliseconds in self._metrics:
            row = {"step": step, "step_ms": milliseconds}
            if loss is not None:
                row["loss"] = float(loss)
            lines.append(json.dumps(row))
        files.write(self.directory / "metrics.jsonl", "".join(line + "\n" for line in lines))
        if error is not None:
            self._notes.append(f"the training loop ended with {type(error).__name__}")
        run = self._run_json()
        files.write(self.directory / "run.json", json.dumps(run, indent=2) + "\n")
        if run["activations"] is not None:
            complain(f"shardlens.record: counting what autograd keeps made the first step {run['activations_ms']:.1f} ms longer")

    def _run_json(self) -> dict[str, Any]:
        import torch

        from .live_framework import framework
        from .live_program_sharding import program_sharded
        from .live_units import process_groups

        settings, states = self._step_settings()  # before the notes, to which it may add
        return {
            "schema": 2,
            "recorder": f"shardlens.record {__version__}",
            "recording": recording_directory.identifier(self.directory),
            "command": sys.argv,
            "versions": {"shardlens": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "framework": framework(),
            "world_size": self._world,
            "groups": process_groups(),
            "program_sharded": program_sharded(self._model),
            "shapes": "whole",
            "step_settings": settings,
            "optimizer_states": states,
            "activations": self._activations and self._activations.json(),
            "activations_ms": self._activations and round(1e3 * self._activations.seconds, 3),
            "notes": self._notes,
        }

    def _step_settings(self) -> Any:
        """The settings of a step, and what the optimizer keeps for each parameter, if that is known."""
        shape, is_float = self._input_shape or (list[int](), False)
        counted = max(self._forwards, default=1) or 1
        settings: dict[str, Any] = {
            "batch": shape[0] if shape else None,
            # Token ids are [batch, seq]; a model of images or features has no sequence.
            "seq": shape[1] if len(shape) == 2 and not is_float else None,
            "accumulate": self._accumulate or counted,
            "sync_every_microbatch": not self._without_sync,
        }
        from .live_allocator import expands_segments
        from .live_optimizer import in_backward, settings_of, states_by_parameter

        if expands_segments():
            settings["expandable_segments"] = True

        optimizer, *notes = in_backward(self._model, self._optimizer)
        states = None
        if optimizer is not None:
            of_optimizer, note = settings_of(optimizer)
            settings.update(of_optimizer)
            notes.append(note)
            try:
                states, note = states_by_parameter(self._model, optimizer)
            except Exception as error:  # noqa: BLE001  a state can be anything; the rest of the recording is good
                note = f"the optimizer's states were not counted: {type(error).__name__}: {error}"
            notes.append(note)
        self._notes += [note for note in notes if note]
        return settings, states

    def _give_up(self, reason: str) -> None:
        """Restores the model and stops recording. Never raises."""
        self._failed = True
        self.recording = False
        for undo in (self._checkpoints and self._checkpoints.remove, self._stop_counting, self._log and self._log.remove, self._hook and self._hook.remove, self._stop_profiler):
            try:
                if undo:
                    undo()
            except Exception:  # noqa: BLE001
                pass
        self._warn(f"recording stopped, training goes on: {reason}")

    def _warn(self, text: str) -> None:
        rank = f"[rank {self._rank}] " if hasattr(self, "_rank") else ""
        warn(f"{rank}shardlens.record: {text}", stacklevel=4)
