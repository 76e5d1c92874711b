"""Finds what in a JSON document is not as docs/schemas says, in words that name the key, its path and the schema's file. Needs the package jsonschema."""
import functools
import json
import re
from pathlib import Path

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "schemas"
# Files that programs read or write, by name.
OF_FILES = {"plan.json": "plan_file", "model.json": "model_file", "run.json": "run_file", "calibration.json": "calibrate"}
# A command's other outputs than that of its own name, by flag.
_BY_FLAG = {
    "analyze": {"--summarize": "analyze_summarize", "--compat": "analyze_hta"},
    "plan": {"--from-trace": "plan_from_trace"},
    "simulate": {"--fits": "simulate_fits"},
    "validate": {"--collectives": "validate_collectives"},
}
_SAME = {"merge": "analyze", "--version": "version"}
_KEPT = 8  # elements of a list that are checked although they are like others


@functools.cache
def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def names():
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def validator(name):
    registry = Registry().with_resources((f"{each}.json", Resource.from_contents(load(each))) for each in names())
    return Draft202012Validator({"$ref": f"{name}.json"}, registry=registry)


def of_command(arguments):
    """The name of the schema of what a command prints; None: no JSON."""
    command, *flags = arguments
    if "--json" not in flags:
        return None
    for flag, name in _BY_FLAG.get(command, {}).items():
        if flag in flags:
            return name
    return _SAME.get(command, command)


def _shape(value):
    """Equal for values that a schema cannot tell apart: their keys and types, and words that may be of an enumeration."""
    if isinstance(value, dict):
        return tuple((key, _shape(each)) for key, each in value.items())
    if isinstance(value, list):
        return frozenset(map(_shape, value)) if len(value) > _KEPT else tuple(map(_shape, value))
    if isinstance(value, str):
        return value if re.fullmatch("[a-z_ ]{1,24}", value) else str
    return type(value)


def _shorter(value):
    """The document without elements of long lists that are like others, of which there may be millions."""
    if isinstance(value, dict):
        return {key: _shorter(each) for key, each in value.items()}
    if isinstance(value, list):
        if len(value) > _KEPT:
            value = list({_shape(each): each for each in value}.values()) or value
        return [_shorter(each) for each in value]
    return value


def _place(path):
    return ".".join(map(str, path)) or "the document"


def _told(error, name):
    """A sentence for each thing that is wrong."""
    file, pointer = _in(name, list(error.absolute_schema_path)[:-1])
    where = f"docs/schemas/{file}.json ({pointer})"
    place = _place(error.absolute_path)
    if error.validator == "additionalProperties" and error.validator_value is False:
        for key in error.instance.keys() - error.schema.get("properties", {}).keys():
            yield f"key '{key}' at {place} is not in {where}"
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield f"key '{key}' is missing at {place}; {where} requires it"
    elif error.validator == "anyOf":
        parts = [each for each in error.context if not (each.validator == "type" and each.validator_value == "null")]
        for each in parts:
            yield from _told(each, name)
    else:
        shown = json.dumps(error.instance, ensure_ascii=False)
        yield f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}, but {error.validator} is {json.dumps(error.validator_value)} in {where}"


def _in(name, steps):
    """The file and the pointer of the part of a schema to which the steps lead. The steps of jsonschema do not name references."""
    file, pointer, here = name, [], load(name)
    for step in [*steps, None]:
        while "$ref" in here:
            other, _, inside = here["$ref"].partition("#")
            file = other.removesuffix(".json") or file
            pointer = [part for part in inside.split("/") if part]
            here = load(file)
            for part in pointer:
                here = here[part]
        if step is not None:
            pointer.append(str(step))
            here = here[step]
    return file, "/".join(["#", *pointer])


def problems(document, name):
    """The faults of a document, by the schema of this name; [] if nothing is."""
    found = (text for error in validator(name).iter_errors(_shorter(document)) for text in _told(error, name))
    return sorted(set(found))
