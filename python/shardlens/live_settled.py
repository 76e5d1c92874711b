"""Whether a training loop has become steady: nothing was compiled in its last step, and the device's allocator got no new memory.

Ranks must agree, because they have to record the same steps. They do so through the store of torch.distributed, without a collective: what the program
sends stays as it is.
"""
import sys
from datetime import timedelta

PATIENCE = 30  # steps; a program that still compiles then is recorded as it is
_WAIT = timedelta(seconds=120)
_count = 0  # of the agreements of this process; ranks make them in the same order


class Settling:
    """Asked after each step, until it says that the program has settled. `unsteady`: PATIENCE ended before that."""

    def __init__(self, world: int) -> None:
        global _count
        _count += 1
        self.unsteady = False
        self._name = f"shardlens/settling/{_count}"
        self._world = world
        self._step = 0
        self._seen = _effort()

    def after_step(self) -> bool:
        """Whether no rank compiled or allocated in the step that has ended. Never true after the first, which has to make everything.

        Errors: RuntimeError if a rank did not answer within two minutes.
        """
        effort = _effort()
        quiet, self._seen = effort == self._seen and self._step > 0, effort
        self._step += 1
        if self._step >= PATIENCE:
            self.unsteady = not quiet
            return True
        return self._all_agree(quiet)

    def _all_agree(self, quiet: bool) -> bool:
        if self._world == 1:
            return quiet
        from torch.distributed import distributed_c10d

        store = distributed_c10d._get_default_store()
        key = f"{self._name}/{self._step}"
        if not quiet:
            store.add(f"{key}/busy", 1)
        if store.add(f"{key}/ranks", 1) == self._world:
            store.set(f"{key}/all", "1")
        try:
            store.wait([f"{key}/all"], _WAIT)
        except Exception as error:
            raise RuntimeError(f"a rank did not end step {self._step - 1} within two minutes; record on every rank, or give warmup=K") from error
        return bool(store.add(f"{key}/busy", 0) == 0)


def _effort() -> tuple[int, int]:
    """Compiled frames and device memory segments so far. Imports nothing that the program does not use."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    compiled = sum(dynamo.counters["frames"].values()) if dynamo is not None else 0
    torch = sys.modules.get("torch")
    segments = 0
    if torch is not None and torch.cuda.is_initialized():
        segments = torch.cuda.memory_stats().get("segment.all.allocated", 0)
    return compiled, segments
