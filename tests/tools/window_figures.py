"""Compares the texts of the window's views, from `gui --figures`, with what the commands print for the same run, to the last digit.

The expected texts are made here from the JSON of the commands, without the window's code. Compared are the headline, Modules, Exposed, Ranks, Order,
What if (the run's own plan), Memory with its table of the peak, Advice and Plan space with their search; of the runs in MORE_RUNS also Mesh, Scaling,
Roofline and Events, which are empty unless they are in front. The events' sums are made from the trace itself.
"""
import collections
import decimal
import gzip
import json
import math
import os
import pathlib
import subprocess

ROOT = "(root)"
MORE_RUNS = ("llama-emulated8", "llama-h200", "fsdp2-hybrid")


def printed(shardlens, *arguments, codes=(0,)):
    done = subprocess.run([shardlens, *arguments], capture_output=True, text=True, timeout=300, env=dict(os.environ, QT_QPA_PLATFORM="offscreen"))
    if done.returncode not in codes:
        return None
    return json.loads(done.stdout)


def rounded(value, digits):
    """Rounds as printf rounds the double: by its exact value, halves to even."""
    return f"{decimal.Decimal(value):.{digits}f}"


def milliseconds(ns):
    sign, micro = ("-" if ns < 0 else ""), (abs(ns) + 500) // 1000
    if micro < 10_000_000:
        return f"{sign if micro else ''}{micro // 1000}.{micro % 1000:03} ms"
    milli = (micro + 500) // 1000
    return f"{sign}{milli // 1000}.{milli % 1000:03} s"


def duration(ns):
    if abs(ns) >= 100_000:
        return milliseconds(ns)
    return f"{ns} ns" if abs(ns) < 1000 else f"{rounded(ns / 1e3, 3)} µs"


def in_column(ns, largest):
    """The duration in the unit of the column's largest one."""
    largest = abs(largest)
    if largest < 1000:
        return duration(ns)
    if largest < 100_000:
        return f"{rounded(ns / 1e3, 3)} µs"
    return milliseconds(ns) if largest < 10_000_000_000 else f"{rounded(ns / 1e9, 3)} s"


def memory(size):
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    while value >= 1024 and unit < 4:
        value, unit = value / 1024, unit + 1
    return f"{rounded(value, 2)} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]}"


def change(value, base):
    share = 0 if base == 0 else (value - base) / base
    return "=" if abs(share) < 0.0005 else f"{'▼' if share < 0 else '▲'} {rounded(abs(100 * share), 1)} %"


def percent(share):
    sign = "" if abs(100 * share) < 0.05 else "+" if share > 0 else "−"
    return f"{sign}{rounded(abs(100 * share), 1)}"


def label(unit):
    return unit or ROOT


class Views:
    """The texts of one run's window."""

    def __init__(self, figures):
        self.headline = figures["views"]["headline"]
        self.panels = figures["views"]["panels"]

    def rows(self, panel):
        of = self.panels[panel]
        return [dict(zip([*of["columns"], "depth"], row)) for row in of["rows"]]

    def note(self, panel):
        return " ".join(self.panels[panel]["notes"])


class Comparison:
    def __init__(self, run):
        self.run, self.wrong, self.count = run, [], 0

    def same(self, what, shown, expected):
        self.count += 1
        if shown != expected:
            self.wrong.append(f"{self.run}: {what}: the window shows {shown!r}, the commands say {expected!r}")

    def contains(self, what, text, expected):
        self.count += 1
        if expected not in text:
            self.wrong.append(f"{self.run}: {what}: {expected!r} is not in {text!r}")


def check_headline(at, views, rank):
    names = (("compute", "compute_ns"), ("exposed communication", "exposed_comm_ns"), ("exposed copies", "exposed_copy_ns"), ("idle", "idle_ns"))
    parts = " + ".join(f"{name} {milliseconds(rank[key])}" for name, key in names)
    at.same("headline", views.headline, f"{'steps' if rank['steps'] else 'trace'} {milliseconds(rank['span_ns'])} = {parts}")


GATHERS, REDUCTIONS = ("all_gather_forward", "all_gather_backward"), ("reduce_scatter", "all_reduce")


def exposed_of(unit, parts):
    return sum(unit[part]["exposed_ns"] for part in parts if unit.get(part))


def all_parts(unit):
    return [key for key, value in unit.items() if isinstance(value, dict) and "exposed_ns" in value]


def check_modules(at, views, rank):
    """Each row is the sum of the units within it. A row of blocks that are folded is left out; the blocks within it are not. A column has the unit of
    its largest top row."""
    figures, largest, total, path = [], collections.Counter(), 0, []
    own = {row["Module"].split("  ")[0] for row in views.rows("modules") if row["depth"] == 0}
    for row in views.rows("modules"):
        name = row["Module"].split("  ")[0]
        path = [*path[:row["depth"]], name]
        if "…" in name:
            continue
        fqn = ".".join(each for each in path[1:] if "…" not in each)
        if row["depth"] > 0:
            units = [u for u in rank["units"] if f"{u['fqn']}.".startswith(f"{fqn}.")]
        else:  # the model, or a section or a bucket
            units = [u for u in rank["units"] if u["fqn"] == name or name == "model" and not u["fqn"].startswith("<") and u["fqn"] not in own]
        values = {"Exposed ▨": sum(exposed_of(u, all_parts(u)) for u in units), "Compute": sum(u.get("compute_ns") or 0 for u in units),
                  "Gather ▨": sum(exposed_of(u, GATHERS) for u in units), "Reduce ▨": sum(exposed_of(u, REDUCTIONS) for u in units)}
        figures.append((fqn or name, row, values))
        if row["depth"] == 0:
            total += values["Exposed ▨"]
            largest |= collections.Counter(values)  # the larger of each
    for name, row, values in figures:
        for title, ns in values.items():
            at.same(f"Modules, {name}, {title}", row[title], in_column(ns, largest[title]) if ns else "–")
    at.same("Modules, sum of the top rows", total, rank["exposed_comm_ns"])


COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "other")


def check_exposed(at, views, rank):
    spans = [s for s in rank["spans"] if s["kind"] in COLLECTIVES and s["exposed_ns"] > 0]
    values = [(s["exposed_ns"], s["end_ns"] - s["start_ns"], s.get("slack_ns")) for s in spans]
    largest = [max((abs(each) for each in column if each is not None), default=0) for column in zip(*values)]
    expected = collections.Counter((label(s["fqn"]), str(s["step"]) if s["step"] is not None else "–",
                                    *("–" if each is None else in_column(each, most) for each, most in zip(row, largest))) for s, row in zip(spans, values))
    rows = views.rows("exposed")
    shown = collections.Counter((r["Unit"], r["Step"], r["Exposed"], r["Duration"], r["Slack"]) for r in rows)
    for row in (shown - expected) | (expected - shown):
        at.same(f"Exposed, rows {row}", shown[row], expected[row])
    at.count += len(rows)
    if rows:
        count = f"{len(rows):,} collective{'' if len(rows) == 1 else 's'}"
        at.contains("Exposed, total", views.note("exposed"), f"{count}, {duration(rank['exposed_comm_ns'])} exposed in total")


def check_ranks(at, views, analyzed):
    ranks = {str(r["rank"]): r for r in analyzed["ranks"]}
    late = {str(s["rank"]): s for s in analyzed.get("stragglers", [])}
    rows = views.rows("ranks")
    at.same("Ranks, rows", sorted(r["Rank"] for r in rows), sorted(ranks))
    for row in rows:
        rank = ranks[row["Rank"]]
        for title, key in (("Exposed", "exposed_comm_ns"), ("Compute", "compute_ns"), ("Copies", "exposed_copy_ns"), ("Idle", "idle_ns"), ("Time", "span_ns")):
            at.same(f"Ranks, {row['Rank']}, {title}", row[title], in_column(rank[key], max(r[key] for r in ranks.values())))
        if row["Rank"] in late:
            most = max(s["held_up_ns"] for s in late.values())
            at.same(f"Ranks, {row['Rank']}, others waited", row["Others waited"], in_column(late[row["Rank"]]["held_up_ns"], most))
            at.same(f"Ranks, {row['Rank']}, last", row["Last"], str(late[row["Rank"]]["last"]))
    exposed = sum(r["exposed_comm_ns"] for r in ranks.values())
    at.contains("Ranks, sum", views.note("ranks"), f"{duration(exposed)} exposed on {len(ranks)} rank{'' if len(ranks) == 1 else 's'}.")


def check_order(at, views, rank):
    order, rows = rank["order"], views.rows("order")
    differences = sum(1 for o in ("planned_vs_issued", "issued_vs_started") if order[o]["first_difference"])
    at.same("Order, differs", any("differ" in r["Agree"] for r in rows), differences > 0) if order["planned_vs_issued"]["compared"] else None
    if rows and order["issued_vs_started"]["compared"]:
        at.same("Order, collectives of a step", order["issued_vs_started"]["compared"], len(rows) * len(rank["steps"]))


def check_what_if(at, views, simulated, analyzed):
    own = views.rows("whatif")[0]
    baseline = simulated["baseline"]
    at.same("What if, step", own["Step"], duration(simulated["step_ns"]))
    at.same("What if, peak", own["Peak"], memory(simulated["peak_allocated_bytes"]))
    at.same("What if, exposed", own["Exposed"], duration(simulated["exposed_comm_ns"]))
    at.same("What if, off by", own["Off by"], f"{percent(baseline['error'])} %")
    at.same("What if, change", (own["Δ step"], own["90 % interval"], own["Δ peak"]), ("=", "=", "="))
    note = views.note("whatif")
    at.contains("What if, measured", note, f"{duration(baseline['measured_step_ns'])} per step measured")
    at.contains("What if, simulated", note, f"{duration(baseline['simulated_step_ns'])} simulated")
    at.contains("What if, error", note, f"simulator error {percent(baseline['error'])} %")
    at.contains("Memory, peak", views.note("memory"), memory(simulated["peak_allocated_bytes"]))
    # The parts of the median step: of an even number, the mean of the two in the middle.
    steps = sorted((s for r in analyzed["ranks"] for s in r["steps"]), key=lambda s: s["span_ns"])
    if len(steps) != baseline["steps"] or baseline["one_pass"]:
        return
    low, high = steps[(len(steps) - 1) // 2], steps[len(steps) // 2]
    if (low["span_ns"] + high["span_ns"]) // 2 != baseline["measured_step_ns"]:
        return

    def measured(*keys):
        return sum((low[key] + high[key]) // 2 for key in keys)

    whole = measured("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
    errors = [percent((sum(simulated[key] for key in keys) - measured(*keys)) / whole)
              for keys in (("compute_ns",), ("exposed_comm_ns",), ("idle_ns", "exposed_copy_ns"))]
    at.same("What if, error by part", own["By part"], f"compute {errors[0]} %, exposed communication {errors[1]} %, idle and copies {errors[2]} %")


def measured_peak(run, analyzed):
    """The peak of the allocator in a recorded step: of the traces, else of metrics.jsonl; None: not measured."""
    peaks = []
    for rank in analyzed["ranks"]:
        records = [m for m in rank["memory"] if all("peak_allocated_bytes" in step for step in m["steps"])]
        for record in [m for m in records if m["device"].startswith("cuda")][:1] or records[:1]:
            peaks += [step["peak_allocated_bytes"] for step in record["steps"]]
    metrics = pathlib.Path(run) / "metrics.jsonl"
    if not peaks and metrics.exists():
        steps = {step["step"] for step in analyzed["ranks"][0]["steps"]}
        lines = map(json.loads, metrics.read_text().splitlines())
        peaks = [line["peak_allocated_bytes"] for line in lines if line["step"] in steps and "peak_allocated_bytes" in line]
    return max(peaks, default=None)


def check_measured_memory(at, views, simulated, analyzed):
    measured, peak = measured_peak(at.run, analyzed), simulated["peak_allocated_bytes"]
    for panel in ("memory", "whatif"):
        if measured is None:
            at.same(f"{panel}, no measured peak", " measured (" in views.note(panel).partition("peak")[2], False)
        else:
            at.contains(f"{panel}, measured peak", views.note(panel), f"{memory(peak)} simulated, {memory(measured)} measured ({percent(peak / measured - 1)} %)")


def advised(views):
    """The rows of Advice below each title, which is a row with one text."""
    below, rows = {}, []
    for row in views.rows("advice"):
        if any(text for name, text in row.items() if name != "Plan"):
            rows.append(row)
        else:
            rows = below.setdefault(row["Plan"], [])
    return below


def check_advice(at, views, advice):
    rows = advised(views).get("Changes of this plan", [])
    changes = [*advice["changes"], *advice["others"]]
    at.same("Advice, plans", [r["Plan"] for r in rows], [c["title"] for c in changes])
    for row, of in zip(rows, changes):
        before = of["step_ns"] - of["change_ns"]

        def of_step(by, base=before):
            return change(base + by, base)
        what = f"Advice, {of['title']}, "
        at.same(what + "peak", row["Peak"], memory(of["peak_allocated_bytes"]))
        at.same(what + "verdict", row["Verdict"], of["verdict"] + ("" if of["odds"] is None else f", odds {of['odds']} in 100"))
        at.same(what + "change", row["Δ step"], of_step(of["change_ns"]))
        at.same(what + "step", row["Step"], duration(of["step_ns"]))
        at.same(what + "interval", row["90 % interval"], " to ".join(percent(end / before) for end in of["interval_ns"]) + " %")
        at.same(what + "bound", row["99 % bound"], f"{percent(of['bound_ns'] / before)} %")


def check_search(at, views, found):
    """The window lists those plans of the command's front in three figures that are also on the front of step and peak."""
    front = found["pareto"]
    listed = [p for i, p in enumerate(front) if not any(
        q["step_ns"] <= p["step_ns"] and q["peak_allocated_bytes"] <= p["peak_allocated_bytes"]
        and ((q["step_ns"], q["peak_allocated_bytes"]) != (p["step_ns"], p["peak_allocated_bytes"]) or j < i) for j, q in enumerate(front))]
    rows = advised(views).get("Search", [])
    at.same("Find best, plans", [r["Plan"] for r in rows], [p["name"] for p in listed])
    for row, of in zip(rows, listed):
        at.same(f"Find best, {of['name']}, step", row["Step"], duration(of["step_ns"]))
        at.same(f"Find best, {of['name']}, peak", row["Peak"], memory(of["peak_allocated_bytes"]))
    # A run's own machine has a memory of unknown size, while the command needs a limit.
    at.contains("Find best, why", views.note("advice"), found["best"]["why"].partition(")")[2])


CATEGORIES = {"gradients": "Gradients", "optimizer": "Optimizer", "unsharded": "Gathered", "activations": "Activations",
              "communication": "Buffers"}  # all but parameters, of which each rank has its own


def check_peak(at, views, simulated):
    """The rows are rounded each by itself, so a category's sum is within half of the last digit of each."""
    units = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
    sums, digits = collections.Counter(), collections.Counter()
    for row in views.rows("memory"):
        if row["As it ran"] != "–":
            number, unit = row["As it ran"].split()
            sums[row["Category"]] += float(number) * units[unit]
            digits[row["Category"]] += 0 if unit == "B" else 0.006 * units[unit]
    for category, size in simulated["memory"].items():
        at.same(f"Memory, {category}", abs(sums[category] - size) <= digits[category], True)


def check_space(at, views, found):
    """Every plan of the command's front has a plan in the window that is not worse, and every plan of the window's front is one of the command's."""
    rows = [row for row in views.rows("space") if row["90 % interval"] != "–"]
    best = {(duration(plan["step_ns"]), memory(plan["peak_allocated_bytes"])) for plan in found["pareto"]}
    for row in rows:
        at.same(f"Plan space, {row['Step']}, {row['Peak']}, is on the front of search", (row["Step"], row["Peak"]) in best, True)
    fastest = min(plan["step_ns"] for plan in found["pareto"])
    at.same("Plan space, fastest step", views.rows("space")[0]["Step"], duration(fastest))


def check_mesh(at, views, analyzed, simulated, planned):
    """The run's own plan: ranks that were not recorded have no time."""
    waited = {str(rank["rank"]): rank["exposed_comm_ns"] for rank in analyzed["ranks"]}
    rows = views.rows("mesh")
    at.same("Mesh, ranks", [row["Rank"] for row in rows], [str(rank) for rank in range(math.prod(simulated["mesh"].values()))])
    for row in rows:
        what = f"Mesh, rank {row['Rank']}, "
        at.same(what + "waited", row["Waited"], in_column(waited[row["Rank"]], max(waited.values())) if row["Rank"] in waited else "–")
        for category, title in CATEGORIES.items():
            at.same(what + category, row[title], memory(simulated["memory"][category]))
    for row, rank in zip(rows, planned["ranks"] if planned else []):
        at.same(f"Mesh, rank {row['Rank']}, parameters", row["Parameters"], memory(rank["parameter_bytes"]))


def check_scaling(at, views, simulated):
    rows = [row for row in views.rows("scaling") if row["Size"] == str(math.prod(simulated["mesh"].values()))]
    at.same("Scaling, the plan's own size", [row["Step"] for row in rows], [duration(simulated["step_ns"])])
    at.contains("Scaling, the plan's own step", views.note("scaling"), f"Step {duration(simulated['step_ns'])}")


def check_roofline(at, views, simulated):
    if simulated["mfu"] is not None:
        at.contains("Roofline, MFU", views.note("roofline"), f"MFU of the whole step: {rounded(100 * simulated['mfu'], 1)} %")
    sections = [index for index, row in enumerate(views.rows("roofline")) if row["Share"] == ""] + [len(views.rows("roofline"))]
    for begin, end in zip(sections, sections[1:]):
        shares = [float(row["Share"].split()[0]) for row in views.rows("roofline")[begin + 1:end]]
        at.same(f"Roofline, {views.rows('roofline')[begin]['What']}, shares", abs(sum(shares) - 100) <= 0.05 * len(shares) + 1e-9, True)


def check_events(at, views, trace):
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    lengths = collections.defaultdict(list)
    for event in events:
        if event.get("ph") in ("X", "i", "s", "f"):  # spans, instants, arrows
            begin = decimal.Decimal(str(event["ts"])) * 1000
            lengths[event["name"]].append(int(begin + decimal.Decimal(str(event.get("dur", 0))) * 1000) - int(begin))
    longest = max(sum(each) for each in lengths.values())
    rows = {row["What"]: row for row in views.rows("events")}
    at.same("Events, names", sorted(rows), sorted(lengths))
    for name, each in lengths.items():
        row = rows.get(name, collections.defaultdict(str))
        at.same(f"Events, {name}, count", row["Count"], str(len(each)))
        at.same(f"Events, {name}, sum", row["Sum"], in_column(sum(each), longest))


def check_more(at, shardlens, run, analyzed, simulated):
    """Of views that are empty unless they are in front."""
    def shown(panel, *more):
        return Views(printed(shardlens, "gui", run, "--figures", "--panel", panel, *more))

    traces = sorted(pathlib.Path(run).glob("rank0*.json.gz"))
    check_events(at, shown("events", "--choose", "By name"), traces[0])
    if simulated is not None:
        planned = None
        if (pathlib.Path(run) / "config.json").exists():
            planned = printed(shardlens, "plan", "--model", run, "--plan", f"{run}/plan.json", "--json",
                              "--world-size", str(math.prod(simulated["mesh"].values())))
        check_mesh(at, shown("mesh"), analyzed, simulated, planned)
        check_scaling(at, shown("scaling"), simulated)
        check_roofline(at, shown("roofline", "--choose", "By kind"), simulated)


def check_run(shardlens, run):
    at = Comparison(run)
    found = printed(shardlens, "search", "--workload", run, "--memory-limit", "1TiB", "--json")
    figures = printed(shardlens, "gui", run, "--figures", "--panel", "advice", *(["--find-best"] if found else []))
    analyzed = printed(shardlens, "analyze", "--by", "span", "--json", run)
    if figures is None or analyzed is None:
        at.wrong.append(f"{run}: gui --figures or analyze failed")
        return at
    views, first = Views(figures), analyzed["ranks"][0]
    check_headline(at, views, first)
    check_modules(at, views, first)
    check_exposed(at, views, first)
    check_ranks(at, views, analyzed)
    check_order(at, views, first)
    simulated = printed(shardlens, "simulate", "--workload", run, "--json")
    at.same("What if, is possible", bool(views.rows("whatif")), simulated is not None)
    if simulated is not None:
        check_what_if(at, views, simulated, analyzed)
        check_measured_memory(at, views, simulated, analyzed)
        check_peak(at, views, simulated)
        check_advice(at, views, printed(shardlens, "advise", "--json", run, codes=(0, 5)))
    if found is not None:
        check_search(at, views, found)
        check_space(at, views, found)
    if pathlib.Path(run).name in MORE_RUNS:
        check_more(at, shardlens, run, analyzed, simulated)
    return at


def check(shardlens, runs):
    wrong, count = [], 0
    for run in runs:
        at = check_run(shardlens, run)
        wrong += at.wrong
        count += 1
        print(f"{run}: {at.count} texts, {len(at.wrong)} differ")
    return wrong, count
