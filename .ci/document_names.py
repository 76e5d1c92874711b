"""Checks that what documents name exists: keys of plans and of other JSON, identifiers, source files, states of hardware.

Used by check_documents.py. `known` are the words of the sources, see words_of().
"""
import json
import re

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INLINE = re.compile(r"`([^`\n]+)`")
# A name that only code has: words joined by underscores. What follows a dot, a slash or a < is part of a longer name, or a word to fill in.
IDENTIFIER = re.compile(r"(?<![\w./<*:-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w/*<…-]|\.\w)")
KEY = re.compile(r'"([A-Za-z_][\w ]*)"(?=\s*[:\]},]|$)')
FILE = re.compile(r"(?<![\w./<*-])([a-z][a-z0-9_]*\.(?:h|cpp|py))(?![\w.])")
PLAN = re.compile(r"\{\s*\"version\": 1\b")
# Names of other projects and of examples that no source of this repository has.
ELSEWHERE = set("""
    c1 empty_module flatten_nothing flatten_optimizer_state_dict fsdp_forward_prefetch get_global_offset_from_param_offsets mcpServers num_params
    make_streams_panel partial_flattening rank_3 reducer.cpp set_symm_mem_for_comm sharded_flat_param shared_params_num_params shared_params_output shared_params_pnorm_after_step
    snake_case tensorboard_trace_handler
""".split())

# Keys of files that have no schema: checkpoint.json, workload.json, hardware specs, states of plans in an order.
WITHOUT_SCHEMA = set("crc32 good_steps offset pieces scale o3 h0 network_gbps nodes range args".split())
# What is in quotes, but no key: values, and arguments of Python.
VALUES = set("Spans attention every_second_product lm_head dask ray bf16".split())

STATES = "docs/reference/hardware.md"
# A sentence that says on what something has run, or has not.
STATE = re.compile(r"(?=.*\b(?:GPUs?|NVIDIA|NCCL|CUPTI|device|H\d00|CPUs?)\b)(?:.*\bha(?:s|ve) (?:(?:only|not|never|also|yet) )*(?:been )?run\b|.*\b(?:not (?:yet )?|never )(?:been )?run (?:yet|on)\b)")


def words_of(text):
    return WORD.findall(text)


def fenced(text):
    """(number of the first line, language, text) of each fenced block."""
    start, language, block = 0, "", []
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.strip().startswith("```")
        if fence and not start:
            start, language, block = number + 1, line.strip().strip("`"), []
        elif fence:
            yield start, language, "\n".join(block)
            start = 0
        elif start:
            block.append(line)


def prose(text):
    """(number, line) of the lines that are in no fenced block; fences are empty lines."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.strip().startswith("```")
        if not inside or fence:
            yield number, "" if fence else line
        inside = inside != fence


def names(path, text, known, files, keys):
    """Identifiers and files in code within prose, and keys in quotes there and in blocks of JSON; `keys` are those of schemas."""
    keys = keys | VALUES | WITHOUT_SCHEMA & known
    for number, line in prose(text):
        for code in INLINE.findall(line):
            for name in IDENTIFIER.findall(code):
                if name not in known and name not in ELSEWHERE:
                    yield f"{path}:{number}: no source has the name {name}"
            for name in FILE.findall(code):
                if name not in files | ELSEWHERE:
                    yield f"{path}:{number}: there is no {name}"
            for key in KEY.findall(code):
                if key not in keys | ELSEWHERE:
                    yield f"{path}:{number}: no JSON has the key \"{key}\""
    for start, language, block in fenced(text):
        if language == "json" and not PLAN.search(block):
            for key in re.findall(r'"([A-Za-z_]\w*)"\s*:', block):
                if key not in keys | ELSEWHERE:
                    yield f"{path}:{start}: no JSON has the key \"{key}\""


def keys_of(schema):
    """Names of all properties in a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


def words_of_schema(schema):
    """Names of all properties, and all values that are listed."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (value for value in [*schema.get("enum", []), schema.get("const")] if isinstance(value, str))
        for value in schema.values():
            yield from words_of_schema(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from words_of_schema(value)


def outputs(path, text, schemas):
    """Names in code behind `--json`, to the end of the paragraph and of the list below it: words of the schemas of the command that the
    heading begins with."""
    command, inside, listed = "", False, False
    common = set(words_of_schema(schemas.get("common", {})))
    for number, line in prose(text):
        if line.startswith("#"):
            command, inside, listed = line.strip("# ").split()[0].lower().replace("simulator", "simulate"), False, False
        stems = [stem for stem in schemas if stem == command or stem.startswith(command + "_")]
        mark = re.search(r"`--json`(?=:| `|,? [^`]*(?::|prints|has)(?:\s|$))", line) if stems else None
        if mark:
            inside, listed, line = True, False, line[mark.end():]
        elif inside and not line.strip():
            listed = True
            continue
        elif listed and not re.match(r"- |\| |  ", line):
            inside = listed = False
        if inside:
            known = common.union(*(words_of_schema(schemas[stem]) for stem in stems))
            for code in INLINE.findall(line):
                if re.fullmatch(r"[a-z][a-z0-9_]*", code) and code not in known:
                    yield f"{path}:{number}: the schema of {command} has no {code}"


def alternatives(schema, root):
    """The schemas that a value may be of."""
    if "$ref" in schema:
        return alternatives(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    found = [each for either in schema.get("anyOf", []) for each in alternatives(either, root)]
    return found or [schema]


def unknown_keys(value, schema, root):
    """Keys of a plan that its schema does not have."""
    if isinstance(value, list):
        for each in value:
            for either in alternatives(schema, root):
                if "items" in either:
                    yield from unknown_keys(each, either["items"], root)
    if not isinstance(value, dict):
        return
    either = [each for each in alternatives(schema, root) if "properties" in each or "additionalProperties" in each]
    for key, below in value.items():
        of_key = [each["properties"][key] for each in either if key in each.get("properties", {})]
        if not of_key and all(each.get("additionalProperties") is False for each in either):
            yield key
        for each in of_key:
            yield from unknown_keys(below, each, root)


def plans(path, text, schema):
    """Plans in blocks of JSON and in commands: their keys are those of the schema of plan files."""
    for start, language, block in fenced(text):
        if language not in ("json", "sh", "text"):
            continue
        for match in PLAN.finditer(block):
            try:
                plan, _ = json.JSONDecoder().raw_decode(block[match.start():])
            except ValueError:
                yield f"{path}:{start}: the plan is no JSON"
                continue
            for key in unknown_keys(plan, schema, schema):
                yield f"{path}:{start}: a plan has no key \"{key}\""


def plain(text):
    """A sentence without links, emphasis and line ends."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("*", "").replace("`", "").split())


def sentences(text):
    """(number of the line where it begins, sentence) of the prose; cells of tables and items of lists are apart."""
    paragraph, begin = [], 0
    for number, line in [*prose(text), (0, "")]:
        new = not line.strip() or re.match(r"\s*(?:[-|#>]|\d+\.|<)", line)
        if new and paragraph:
            yield from ((begin, each) for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", "\n".join(paragraph)))
            paragraph = []
        if line.startswith("#"):
            continue
        if line.startswith("|"):
            yield from ((number, cell) for each in line.strip("|").split("|") for cell in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", each))
        elif line.strip():
            begin = begin if paragraph else number
            paragraph.append(line.lstrip(" -#>"))


def states(path, text, quoted):
    """Sentences that say on which hardware something has run are those of STATES."""
    for number, sentence in sentences(text):
        said = plain(sentence)
        if STATE.match(said) and said.rstrip(".") not in quoted:
            yield f"{path}:{number}: {STATES} does not say \"{said}\""


def quoted_states(root):
    file = root / STATES
    return {plain(sentence).rstrip(".") for _, sentence in sentences(file.read_text(encoding="utf-8"))} if file.is_file() else set()


def state_table(path, text):
    """Each row of the table of states has evidence, or says that nothing has run."""
    for number, line in prose(text):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and STATE.match(plain(cells[0])) and "](" not in cells[1] and cells[1] != "none":
            yield f"{path}:{number}: no evidence of \"{plain(cells[0])}\""
