"""Names of the causes for which a collective is exposed: the words of `shardlens analyze`, joined by underscores."""
from __future__ import annotations

from typing import Any

from .shown import warn

# Names of version 0.1. Version 0.2 accepts both, the next version will not.
_FORMER = {"first": "first_of_the_step", "last": "last_of_the_step", "no_prefetch": "not_prefetched", "late_host": "host_late",
           "queued": "behind_another_collective", "limiter": "held_by_the_limiter", "bandwidth": "limited_by_bandwidth",
           "host_is_compute": "host_waited", "peer": "waited_for_another_rank", "dependency": "needed_at_once", "one_queue": "one_hardware_queue"}


class Cause(str):
    """A cause's name. It also equals its former name, with a DeprecationWarning, so that a test that names one does not silently change its meaning."""

    def __new__(cls, name: str) -> Cause:
        return super().__new__(cls, _FORMER.get(name, name))  # an older program writes the former name

    def __eq__(self, other: object) -> bool:
        now = _FORMER.get(other) if isinstance(other, str) else None
        if now is None:
            return str.__eq__(self, other)
        warn(f"the cause '{other}' is now '{now}'", 2, DeprecationWarning)
        return str.__eq__(self, now)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    @property
    def words(self) -> str:
        """The name as the program's tables print it."""
        return self.replace("_", " ")


def name_causes(analysis: Any) -> Any:
    """Makes each cause in `analyze --json` a Cause."""
    for rank in analysis["ranks"]:
        for unit in rank["units"]:
            for figures in (*(each for each in unit.values() if isinstance(each, dict)), *unit.get("others", ())):
                if figures["cause"] is not None:
                    figures["cause"] = Cause(figures["cause"])
    return analysis
