"""The client for loops without callbacks, such as a loop over torchtitan's modules: a step ends when the optimizer's step() returns."""
from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from .session import Session


def record_loop(directory: Any = None, *, model: Any, optimizer: Any, **settings: Any) -> Session:
    """Records the loop that steps `optimizer`, which may be torchtitan's container. Other arguments are those of Session. Returns the session.

    What was recorded is written when the last recorded step has ended. end() of the session ends it earlier, as does the end of the program.
    """
    session = Session(directory, **settings)
    session.begin(model, optimizer)
    after_step(optimizer, session.step)
    return session


def after_step(optimizer: Any, call: Callable[[], None], when: Callable[[], bool] = lambda: True) -> None:
    """Calls `call` after each optimizer.step() for which `when` is true. It is outside the range that PyTorch's own hooks run in."""
    original = optimizer.step

    @functools.wraps(original)
    def step(_: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if when():
            call()
        return result

    optimizer.step = types.MethodType(step, optimizer)  # a method, because schedulers of learning rates ask for its function
