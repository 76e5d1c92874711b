"""Times of watched steps from every rank to rank 0, through the store of torch.distributed: without a collective, and no rank waits."""
from __future__ import annotations

import json
from typing import Any

SLOTS = 4  # keys of a rank, which are used again: the store does not grow


def rank_and_world() -> tuple[int, int]:
    """(0, 1) without torch.distributed."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


class RankTimes:
    """Made alike on all ranks, after torch.distributed has been initialized or without it. `name`: the same on all ranks."""

    def __init__(self, name: str) -> None:
        self.rank, self.rank_count = rank_and_world()
        self._store: Any = None
        if self.rank_count > 1:
            from torch.distributed import distributed_c10d

            self._store = distributed_c10d._get_default_store()
        self._keys = [[f"{name}/{slot}/{rank}" for rank in range(self.rank_count)] for slot in range(SLOTS)]

    def tell(self, number: int, step_ns: int, exposed_ns: int | None) -> None:
        """Leaves this rank's times of its watched step `number` where rank 0 finds them."""
        if self._store is not None:
            self._store.set(self._keys[number % SLOTS][self.rank], json.dumps([number, step_ns, exposed_ns]))

    def told(self, number: int) -> list[tuple[int, int | None]] | None:
        """(step, exposed) of each rank. None: not all have told. Empty: on other ranks than 0, and if a rank has told of later steps since."""
        if self._store is None or self.rank != 0:
            return []
        keys = self._keys[number % SLOTS]
        if not self._store.check(keys):
            return None
        rows = [json.loads(text) for text in self._store.multi_get(keys)]
        if any(row[0] < number for row in rows):
            return None
        return [(row[1], row[2]) for row in rows] if all(row[0] == number for row in rows) else []
