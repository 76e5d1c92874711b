"""Programs that measure what recording costs: one function on two Gloo ranks, each a process."""
import argparse
import os
import sys
import tempfile

import torch.multiprocessing as mp

MODEL = {"hidden": 384, "blocks": 6, "vocab": 4096, "batch": 4, "seq": 128, "checkpointed": 0}


def main(work, description, **defaults):
    """Runs work(rank, store, options) on both ranks, `store` being a file for init_process_group; ends with the exit code of one that failed.

    `defaults` and those of MODEL are flags with a number.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, default in {**defaults, **MODEL}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            mp.spawn(work, (os.path.join(directory, "store"), options), nprocs=2)
        except mp.ProcessExitedException as error:
            sys.exit(error.exit_code)
