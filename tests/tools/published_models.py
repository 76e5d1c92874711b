"""Counts the parameters of published models with transformers, and compares what `shardlens plan` says of the same config.json.

    python tests/tools/published_models.py record tests/data/published [NAME…]    counts the models that expected.json lacks, or NAMEs (transformers 5.23)
    python tests/tools/published_models.py compare tests/data/published --bin build/release/bin/shardlens [NAME…]

configs.json has for each model where its values are from ("origin") and the config.json itself, with the keys that change no module too; long
lists of a quantisation are shortened. expected.json has what transformers builds on the meta device, of the class that `architectures` names:
its class, its number of parameters (tied ones once), and those of each module of the first two levels and of each layer. `text` is the number
of the language model and its head, where the model has other parts. A model that transformers does not build has its error in place of numbers.

`compare`: each model is planned with exactly these numbers, or refused (exit code 3) with the line that exports it. None is planned otherwise.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LINE = re.compile(r"python -m shardlens\.export --hf (\S+) --out model\.json")


def make(values):
    import torch
    import transformers

    values = {key: value for key, value in values.items() if key not in ("quantization_config", "auto_map")}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(values))
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    name = (config.architectures or [""])[0]
    kind = getattr(transformers, name, None)
    with torch.device("meta"):
        if kind is not None:
            return kind._from_config(config)
        auto = transformers.AutoModelForImageTextToText if "text_config" in values else transformers.AutoModelForCausalLM
        return auto.from_config(config)


def describe(values):
    model = make(values)
    modules = {}
    total = text = 0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        parts = name.split(".")
        if "language_model" in parts or parts[0] == "lm_head":
            text += parameter.numel()
        numbers = [i for i, part in enumerate(parts) if part.isdigit()]
        module = ".".join(parts[: numbers[0] + 1] if numbers else parts[:2])
        modules[module] = modules.get(module, 0) + parameter.numel()
    out = {"class": type(model).__name__, "parameters": total}
    if "text_config" in values:
        out["text"] = text
    else:
        out["modules"] = repeated(modules)
    return out


def repeated(modules):
    """Modules of a list with equal numbers are one entry: "layers.0-3"."""
    out, first = {}, None
    for name, count in modules.items():
        stem, _, index = name.rpartition(".")
        if index.isdigit() and first and first[0] == stem and first[2] + 1 == int(index) and first[3] == count:
            del out[f"{stem}.{first[1]}-{first[2]}" if first[1] != first[2] else f"{stem}.{first[1]}"]
            first = (stem, first[1], int(index), count)
            out[f"{stem}.{first[1]}-{index}"] = count
        else:
            first = (stem, int(index), int(index), count) if index.isdigit() else None
            out[name] = count
    return out


def record(folder, names):
    configs = json.loads((folder / "configs.json").read_text())
    path = folder / "expected.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    for name, entry in configs.items():
        if (names and name not in names) or (not names and name in expected):
            continue
        try:
            expected[name] = describe(entry["config"])
        except (ValueError, KeyError, TypeError, AttributeError, ImportError, OSError) as error:
            expected[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
        print(f"{name}: {expected[name].get('parameters') or expected[name]['error']}", file=sys.stderr, flush=True)
    lines = (f" {json.dumps(name)}: {json.dumps(expected[name])}" for name in configs if name in expected)
    new = path.with_suffix(".new")
    new.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    os.replace(new, path)


def planned(program, folder):
    done = subprocess.run([program, "plan", "--model", str(folder), "--world-size", "1", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        return done.returncode, done.stderr.strip(), None
    return 0, "", sum(unit["parameters"] for unit in json.loads(done.stdout)["units"])


def compare(folder, program, names):
    configs = json.loads((folder / "configs.json").read_text())
    expected = json.loads((folder / "expected.json").read_text())
    wrong = right = refused = 0
    families = set()
    for name, entry in configs.items():
        if names and name not in names:
            continue
        families.add(entry["config"].get("model_type"))
        with tempfile.TemporaryDirectory() as model:
            Path(model, "config.json").write_text(json.dumps(entry["config"]))
            code, error, count = planned(program, model)
            want = expected[name].get("text", expected[name].get("parameters"))
            if code == 0 and count == want:
                right += 1
            elif code == 3 and (line := LINE.search(error)) and line[1] == model:
                refused += 1
                print(f"{name}: refused")
            else:
                wrong += 1
                print(f"{name}: WRONG: {count if code == 0 else error}, transformers counts {want}")
    print(f"{right + refused + wrong} models of {len(families)} families: {right} planned with transformers' number, {refused} refused with the line that exports them, {wrong} wrong")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", default="build/release/bin/shardlens")
    options = parser.parse_args()
    if options.action == "record":
        record(options.folder, options.names)
        return 0
    return compare(options.folder, options.bin, options.names)


if __name__ == "__main__":
    sys.exit(main())
