"""CPU time inside Shardlens's hooks and wrappers while a program trains, by the clock of the thread that runs them.

    with OwnTime() as clock:
        ...                    # a loop with a client of shardlens.clients
    clock.steps                # a row for each step that a session ended

A hook or wrapper is counted from its first line to its last, without the function of the program, PyTorch or torch.profiler that it calls. Of PyTorch, what
Shardlens itself asks for is counted, such as the store. What reading the clock adds is measured on wrappers that do nothing, and taken off; those run in a loop,
so before each reading the code that reads is brought into the caches in which operators of the model have left nothing else.
"""
import functools
import statistics
import time
from dataclasses import dataclass

import torch

from shardlens.clients import Session
from shardlens.live_forward import ForwardWatch
from shardlens.live_wrappers import Wrappers

CALLS = 2000


@dataclass
class Step:
    """`seconds`: of the thread, from the end of the step before to the end of this one. `own`: inside Shardlens."""

    recorded: bool
    watched: bool
    last: bool  # the recording ended with it, and was written
    seconds: float
    own: float
    calls: int  # of hooks and wrappers

    @property
    def kind(self):
        return "last" if self.last else {(False, False): "other", (True, False): "recorded", (False, True): "watched", (True, True): "both"}[self.recorded, self.watched]


class _State:
    __slots__ = ("inside", "since", "own", "calls")

    def __init__(self):
        self.inside = False  # whether Shardlens's code runs
        self.since = 0  # nanoseconds of the thread, when that began
        self.own = 0
        self.calls = 0


class OwnTime:
    """Of the thread that trains; on a CPU it also runs backward."""

    def __init__(self):
        self.steps = []
        self._state = _State()
        self._undo = []
        self._per_call = 0.0  # nanoseconds
        self._began = None  # what _now() returned when the step began
        self._empty = self._within(self._within(lambda: None, False), True)

    def _within(self, function, inside, warm=lambda: None):
        state, clock = self._state, time.thread_time_ns

        @functools.wraps(function)
        def called(*args, **kwargs):
            now = clock()
            before, state.inside = state.inside, inside
            if before:
                state.own += now - state.since
            state.calls += inside
            warm()
            state.since = clock()  # the last thing before the call, so that little of this is in it
            try:
                return function(*args, **kwargs)
            finally:
                now = clock()
                if inside:
                    state.own += now - state.since
                state.inside = before
                warm()
                state.since = clock()

        return called

    def _warm(self):
        state = self._state
        before = state.inside, state.own, state.calls
        self._empty()
        state.inside, state.own, state.calls = before

    def ours(self, function):
        return self._within(function, True, self._warm)

    def theirs(self, function):
        return self._within(function, False, self._warm)

    def _wrap(self, original):
        """`wrap` of Wrappers: what it wraps is another's, what it makes is ours."""

        @functools.wraps(original)
        def wrap(wrappers, owner, name, make):
            return original(wrappers, owner, name, lambda call: self.ours(make(self.theirs(call))))

        return wrap

    def _replace(self, owner, name, function):
        original = owner.__dict__[name]
        setattr(owner, name, function(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def __enter__(self):
        empty, times = self.ours(self.theirs(lambda: None)), []
        for _ in range(20):
            begin = self._state.own
            for _ in range(CALLS):
                empty()
            times.append((self._state.own - begin) / CALLS)
        self._per_call = statistics.median(times)
        self._replace(Wrappers, "wrap", self._wrap)
        self._replace(ForwardWatch, "__init__", lambda original: lambda watch, module, before: original(watch, module, self.ours(before)))
        for name in ("begin", "end"):
            self._replace(Session, name, self.ours)
        self._replace(Session, "step", self._step)
        for name in ("start", "step", "stop"):
            self._replace(torch.profiler.profile, name, self.theirs)
        return self

    def __exit__(self, *_):
        while self._undo:
            self._undo.pop()()

    def _now(self):
        """Nanoseconds of the thread and of its own part, and calls so far."""
        return time.thread_time_ns(), self._state.own, self._state.calls

    def _step(self, original):
        inside = self.ours(original)

        @functools.wraps(original)
        def step(session, *args):
            recorder, watch = session.recorder, session.watch
            recorded = recorder is not None and recorder.recording
            watched = watch is not None and watch._seen is not None
            inside(session, *args)
            now = self._now()
            if self._began is not None:
                elapsed, own, calls = (after - before for before, after in zip(self._began, now))
                ended = recorder is not None and session.recorder is None
                self.steps.append(Step(recorded, watched, ended, elapsed / 1e9, max(0.0, own - calls * self._per_call) / 1e9, calls))
            self._began = self._now()

        return step


@dataclass
class Cost:
    """Of the steps of one kind: how many, seconds inside Shardlens (the median, and the least), and the median of the thread's seconds and of the calls."""

    count: int
    own: float
    least: float
    seconds: float
    calls: float


def costs(steps):
    """The cost of the steps by kind, for the kinds that there are."""
    kinds = {kind: [step for step in steps if step.kind == kind] for kind in ("other", "recorded", "watched", "both", "last")}
    return {
        kind: Cost(len(rows), statistics.median(row.own for row in rows), min(row.own for row in rows), statistics.median(row.seconds for row in rows),
                   statistics.median(row.calls for row in rows))
        for kind, rows in kinds.items() if rows}
