"""The line by which a benchmark reports a ratio to bench/run.py."""
import statistics


def report(name, values):
    """Prints the ratio `name`: what Shardlens takes in parts of what the other side takes, one value for each round."""
    values = list(values)
    print(f"ratio {name} {statistics.median(values):.4g} {min(values):.4g} {max(values):.4g}", flush=True)


def by_round(ours, theirs):
    """The ratio within each round, so that a change of the machine's speed between rounds does not matter."""
    return [a / b for a, b in zip(ours, theirs)]
