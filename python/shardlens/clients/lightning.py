"""The client for Lightning's Trainer."""
from __future__ import annotations

from typing import Any

import lightning.pytorch

from .session import Session, outermost, sharded_root


class LightningCallback(lightning.pytorch.Callback):
    """lightning.Trainer(…, callbacks=[LightningCallback("run")]). Arguments are those of Session.

    A step is one step of the optimizer, with all its microbatches. Its loss is the last microbatch's, which Lightning has divided by accumulate_grad_batches.
    """

    def __init__(self, directory: Any = None, **settings: Any) -> None:
        self.session = Session(directory, **settings)
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self.session.begin(sharded_root(outermost(trainer.strategy.model)), trainer.optimizers[0] if trainer.optimizers else None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._steps:  # a microbatch, after which the optimizer did not step
            return
        self._steps = trainer.global_step
        self.session.step(outputs.get("loss") if isinstance(outputs, dict) else outputs)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.session.end()
