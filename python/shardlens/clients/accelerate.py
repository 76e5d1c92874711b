"""The client for accelerate, which records the model and the optimizer that prepare() returned."""
from __future__ import annotations

from typing import Any

import accelerate

from .loop import after_step
from .session import Session, outermost


def record_accelerate(accelerator: accelerate.Accelerator, directory: Any = None, **settings: Any) -> Session:
    """Records the loop of an accelerator that has prepared a model and an optimizer. Other arguments are those of Session. Returns the session.

    The prepared optimizer's step() does nothing before the last microbatch of accumulate(); a step ends with the one that does.
    """
    if not accelerator._models or not accelerator._optimizers:
        raise ValueError("record_accelerate needs a model and an optimizer: call it after accelerator.prepare(model, optimizer)")
    model, optimizer = outermost(accelerator._models[0]), accelerator._optimizers[0]
    session = Session(directory, **settings)
    session.begin(model, optimizer)
    after_step(optimizer, session.step, lambda: accelerator.sync_gradients)
    return session
