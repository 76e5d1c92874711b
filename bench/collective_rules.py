#!/usr/bin/env python3
"""Compares rules of interpolation between measured sizes of collectives, by their errors at sizes left out.

    collective_rules.py nccl_bandwidth.csv

Reads the tables of `shardlens validate --collectives`, and predicts sizes from 1 MiB up from the other sizes of their curve: with one size left out at a time, and
with every second one left out (even, odd). Prints the mean over curves of a curve's mean |error|, and how many curves are above 5 %. The first rule is the one in use.
At the end, the same comparison of a second measurement with the first, where the table has two.
"""
import argparse
import bisect
import collections
import csv
import math
import statistics

MIB = 1 << 20
KINDS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


def number(text):
    try:
        return float(text)
    except ValueError:
        return 0.0


def read(path):
    curves = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            ranks, size, kind = int(number(row["n_gpus"])), row["size_bytes"], row["collective"]
            if kind not in KINDS or ranks < 2 or not size.isdigit():
                continue
            bus = number(row["busbw_GBs"])
            us = number(row["time_us"]) or (int(size) * KINDS[kind] * (ranks - 1) / ranks / (bus * 1e3) if bus else 0)
            if us > 0:
                curves[row["source"], row["gpu"], row["algo"], kind, ranks][int(size)].append(us)
    tables = [[(size, statistics.median(times)) for size, times in sorted(curve.items())] for curve in curves.values()]
    return [table for table in tables if len(table) > 2], list(curves.values())


def straight(x, y, at):
    i = min(max(bisect.bisect_left(x, at), 1), len(x) - 1)
    return y[i - 1] + (y[i] - y[i - 1]) / (x[i] - x[i - 1]) * (at - x[i - 1])


def cubic(x, y, at):
    """Monotone interpolation: Fritsch and Carlson's PCHIP. The slopes at the ends are those of the first and last pieces."""
    width = [b - a for a, b in zip(x, x[1:])]
    slope = [(b - a) / w for a, b, w in zip(y, y[1:], width)]
    end = [slope[0]]
    for i in range(1, len(slope)):
        a, b = 2 * width[i] + width[i - 1], width[i] + 2 * width[i - 1]
        end.append((a + b) / (a / slope[i - 1] + b / slope[i]) if slope[i - 1] * slope[i] > 0 else 0.0)
    end.append(slope[-1])
    i = min(max(bisect.bisect_left(x, at), 1), len(x) - 1)
    w, t = width[i - 1], (at - x[i - 1]) / width[i - 1]
    return y[i - 1] * (1 + 2 * t) * (1 - t) ** 2 + w * end[i - 1] * t * (1 - t) ** 2 + y[i] * t * t * (3 - 2 * t) + w * end[i] * t * t * (t - 1)


def through(shape, of_bytes, of_time, time):
    """Interpolates with `shape` between of_bytes(size) and of_time(size, us); `time` converts the result back to microseconds."""
    def rule(points, size):
        return time(size, shape([of_bytes(b) for b, _ in points], [of_time(b, us) for b, us in points], of_bytes(size)))
    return rule


RULES = {
    "linear in bytes": through(straight, float, lambda b, us: us, lambda b, y: y),
    "straight in logarithms": through(straight, math.log, lambda b, us: math.log(us), lambda b, y: math.exp(y)),
    "straight between (bytes, time)^0.75": through(straight, lambda b: b ** 0.75, lambda b, us: us ** 0.75, lambda b, y: y ** (1 / 0.75)),
    "straight in bandwidth over log bytes": through(straight, math.log, lambda b, us: b / us, lambda b, y: b / y),
    "monotone cubic in bytes": through(cubic, float, lambda b, us: us, lambda b, y: y),
    "monotone cubic in logarithms": through(cubic, math.log, lambda b, us: math.log(us), lambda b, y: math.exp(y)),
    "monotone cubic in bandwidth over log bytes": through(cubic, math.log, lambda b, us: b / us, lambda b, y: b / y),
}


def left_out(count, mode):
    """Lists of points that are left out together; the first and last points are never left out."""
    inner = range(1, count - 1)
    return [[i] for i in inner] if mode == "one" else [[i for i in inner if i % 2 == (mode == "odd")]]


def errors(curve, rule, mode):
    out = []
    for gone in left_out(len(curve), mode):
        kept = [point for i, point in enumerate(curve) if i not in gone]
        out += [(curve[i][0], rule(kept, curve[i][0]) / curve[i][1] - 1) for i in gone if curve[i][0] >= MIB]
    return out


def mean(values):
    return sum(values) / len(values) if values else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    table = parser.parse_args().table
    curves, measured = read(table)
    if not curves:
        parser.error(f"{table}: no curve of three sizes or more")
    best = [math.inf] * len(curves)
    for name, rule in RULES.items():
        line = f"{name:44}"
        for mode in ("one", "even", "odd"):
            of_curve = [mean([abs(e) for _, e in errors(curve, rule, mode)]) for curve in curves]
            best = [min(a, b) for a, b in zip(best, of_curve)] if mode == "one" else best
            line += f"{mode:>6}: {100 * mean(of_curve):5.2f} %, {sum(e > 0.05 for e in of_curve):2} above"
        print(line)
    print(f"the best of these for each of {len(curves)} curves: {100 * mean(best):.2f} %, {sum(e > 0.05 for e in best)} above 5 %")
    by_size, pairs, opposite = collections.defaultdict(list), 0, 0
    for curve in curves:
        found = errors(curve, RULES["linear in bytes"], "one")
        for size, error in found:
            by_size[size].append(abs(error))
        for (_, a), (size, b) in zip(found, found[1:]):
            if size < 64 * MIB and max(abs(a), abs(b)) > 0.05:
                pairs, opposite = pairs + 1, opposite + (a * b < 0)
    print("linear, by MiB:", ", ".join(f"{size // MIB}: {100 * mean(by_size[size]):.1f} %" for size in sorted(by_size)))
    falls = sum(any(b[1] < a[1] and b[0] >= MIB for a, b in zip(curve, curve[1:])) for curve in curves)
    twice = [[abs(times[0] / times[1] - 1) for size, times in curve.items() if size >= MIB and len(times) == 2] for curve in measured]
    twice = [mean(each) for each in twice if len(each) > 2]
    if twice:
        print(f"measured twice: {len(twice)} curves, {100 * mean(twice):.1f} % apart in the mean, {sum(e > 0.05 for e in twice)} above 5 %, "
              f"at most {100 * max(twice):.1f} %")
    print(f"neighbouring errors below 64 MiB, one above 5 %: {opposite} of {pairs} of opposite sign; curves with a time that falls: {falls}")


if __name__ == "__main__":
    main()
