"""The client for transformers' Trainer and for TRL's trainers, which are subclasses of it."""
from __future__ import annotations

from typing import Any

import transformers

from .session import Session, outermost


class TrainerCallback(transformers.TrainerCallback):
    """Trainer(…, callbacks=[TrainerCallback("run")]). Arguments are those of Session.

    A step is one step of the optimizer, with all its microbatches. The loss is not read: Trainer logs it.
    """

    def __init__(self, directory: Any = None, **settings: Any) -> None:
        self.session = Session(directory, **settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.begin(outermost(kwargs["model"]), kwargs.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.session.end()
