"""How PyTorch's allocator is set up, which decides what a step reserves."""
from __future__ import annotations

import os

# The first one that is set takes precedence. Source: torch 2.11, c10/core/AllocatorConfig.h.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def expands_segments() -> bool:
    """Whether the environment asks for expandable segments."""
    for name in _VARIABLES:
        if os.environ.get(name):
            options = dict(part.strip().partition(":")[::2] for part in os.environ[name].split(","))
            return options.get("expandable_segments", "").strip().lower() == "true"
    return False
