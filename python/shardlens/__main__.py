"""The program `shardlens`, with the same command line: `shardlens …` or `python -m shardlens …`."""
import os
import sys

from . import program
from .shown import give_up


def main() -> None:
    try:
        path = program.path()
    except program.ShardlensError as error:
        give_up(f"shardlens: {error}")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
