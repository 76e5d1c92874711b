#!/usr/bin/env python3
"""Writes tests/data/corrupt: damaged traces, and expected.json with what the reader must report for each.

    corrupt_traces.py DIR

Positions of faults are computed here, not taken from the reader. An entry is {"code": 3, "says": [parts of the message]}, or for a file whose rest
is usable {"code": 0, "events": n} with, where something was left out, {"says": [part of a diagnostic], "count": how often}.
"""
import ctypes
import gzip
import json
import struct
import sys
from pathlib import Path

HEAD = '{"distributedInfo": {"rank": 0, "world_size": 1},\n"traceEvents": [\n'
EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
TAIL = '\n], "traceName": "t"}\n'
GOOD = HEAD + EVENT + ",\n" + EVENT + TAIL

corpus = {}


def add(name, content, code, says=(), **more):
    content = content.encode() if isinstance(content, str) else content
    assert name not in corpus, name
    corpus[name] = (content, {"code": code, "says": [says] if isinstance(says, str) else list(says), **more})


def broken(name, content, at, *says):
    """`at`: byte of the fault; None: the message has no position."""
    add(name, content, 3, ([] if at is None else [f"at byte {at}: "]) + list(says))


def replaced(name, old, new, at, *says):
    """GOOD with the first `old` replaced; the fault is `at` bytes into `new`."""
    place = GOOD.index(old)
    broken(name, GOOD.replace(old, new, 1), len(GOOD[:place].encode()) + at, *says)


def usable(name, event, says, count=1, events=2, head=HEAD):
    add(name, head + EVENT + ",\n" + event + TAIL, 0, says, events=events, count=count)


def changed(old, new):
    assert old in EVENT
    return EVENT.replace(old, new, 1)


def zstd(content):
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    library.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    out = ctypes.create_string_buffer(library.ZSTD_compressBound(len(content)))
    size = library.ZSTD_compress(out, len(out), content, len(content), 3)
    return out.raw[:size]


def no_trace():
    broken("empty.json", "", None, "the file is empty")
    broken("blank.json", " \n\t\n", 4, "the JSON ends")
    broken("text.json", "hello\n", 0, "expected a value, not 'hello'")
    broken("number.json", "17\n", 0, "not a trace: expected an object or a list of events")
    broken("string.json", '"traceEvents"\n', 0, "not a trace")
    broken("no_events.json", "{}\n", None, 'no list "traceEvents"')
    broken("html.json", "<!DOCTYPE html>\n<html></html>\n", None, "not a trace, but an HTML page")
    for name, value in [("object", "{}"), ("null", "null"), ("text", '"many"')]:
        broken(f"events_are_{name}.json", '{"traceEvents": ' + value + "}\n", 16, '"traceEvents" is not a list')


def cut_off():
    def cut(name, behind, *says):
        text = GOOD[: GOOD.index(behind) + len(behind)]
        broken(name, text, len(text), *says)

    cut("cut_in_head.json", '"distributedInfo": {"rank"', "the file is cut off")
    cut("cut_before_events.json", '"traceEvents": ', "the file is cut off")
    cut("cut_at_first_event.json", '"traceEvents": [\n', "the file is cut off")
    cut("cut_in_event.json", '"cat": ', "the file is cut off")
    cut("cut_in_key.json", '"na', "last quote", "cut off")
    cut("cut_in_text.json", '"cat": "kern', "last quote", "cut off")
    cut("cut_in_args.json", '"args": {"stream": 7', "the file is cut off")
    cut("cut_behind_comma.json", EVENT + ",", "the file is cut off")
    cut("cut_behind_events.json", "\n]", "the file is cut off")
    cut("cut_in_last_line.json", '"traceName": "t"', "the file is cut off")
    broken("cut_in_escape.json", GOOD[: GOOD.index('"k"') + 2] + "\\", GOOD.index('"k"') + 3, "last quote", "cut off")


def wrong_grammar():
    replaced("no_colon.json", '"ph": "X"', '"ph" "X"', 5, "expected ':'")
    replaced("no_comma_in_event.json", '"X", "cat"', '"X" "cat"', 4, "expected ',' or '}'")
    replaced("no_comma_between_events.json", EVENT + ",\n", EVENT + "\n", len(EVENT) + 1, "expected ',' or ']'")
    replaced("two_commas.json", EVENT + ",\n", EVENT + ",,\n", len(EVENT) + 1, "expected a value")
    replaced("comma_at_end_of_event.json", '"stream": 7}}', '"stream": 7,}}', 12, "expected a key in quotes")
    replaced("comma_at_end_of_list.json", EVENT + TAIL, EVENT + "," + TAIL, len(EVENT) + 2, "expected a value, not ']'")
    replaced("single_quotes.json", '"cat"', "'cat'", 0, "expected a key in quotes")
    replaced("bare_key.json", '"cat"', "cat", 0, "expected a key in quotes")
    replaced("number_as_key.json", '"cat"', "7", 0, "expected a key in quotes")
    replaced("wrong_bracket.json", "7}}", "7]}", 1, "expected ',' or '}'")
    replaced("bracket_too_many.json", EVENT + ",\n", EVENT + "},\n", len(EVENT), "expected ',' or ']'")
    replaced("list_within_members.json", '"args": {"stream": 7}', '"args": {["stream", 7]}', 9, "expected a key in quotes")
    replaced("leading_zero.json", '"ts": 1.5', '"ts": 01.5', 6, "expected a value, not '01.5'")
    replaced("no_digit_behind_point.json", '"ts": 1.5', '"ts": 1.', 6, "expected a value")
    replaced("two_points.json", '"ts": 1.5', '"ts": 1.5.5', 6, "expected a value")
    replaced("plus_sign.json", '"ts": 1.5', '"ts": +1.5', 6, "expected a value")
    replaced("hexadecimal.json", '"ts": 1.5', '"ts": 0x15', 6, "expected a value")
    replaced("empty_exponent.json", '"ts": 1.5', '"ts": 1.5e', 6, "expected a value")
    replaced("python_true.json", '"stream": 7', '"on": True', 6, "expected a value, not 'True'")
    replaced("cut_word.json", '"stream": 7', '"on": tru', 6, "expected a value, not 'tru'")
    replaced("comment.json", EVENT + ",\n", EVENT + ", // next\n", len(EVENT) + 2, "expected a value")
    replaced("zero_byte.json", EVENT + ",\n", EVENT + ",\0\n", len(EVENT) + 1, "expected a value")
    replaced("text_behind_end.json", TAIL, TAIL + "more", len(TAIL), "more text after the end")
    broken("second_document.json", GOOD + GOOD, len(GOOD), "more text after the end")
    broken("bracket_behind_end.json", GOOD.rstrip() + "]\n", len(GOOD.rstrip()), "more text after the end")
    deep = '"x": ' + "[" * 2000 + "]" * 2000
    place = GOOD.index('"stream"')
    # Level 1 is the value of "x".
    broken("nested_deep.json", GOOD.replace('"stream": 7', deep, 1), place + 5 + 1024, "nested more than 1024 deep")


def wrong_text():
    replaced("line_break_in_text.json", '"k"', '"k\nl"', 2, "control character")
    replaced("tab_in_key.json", '"cat"', '"c\tat"', 2, "control character")
    replaced("unknown_escape.json", '"k"', r'"k\q"', 2, "invalid escape sequence")
    replaced("half_escape.json", '"k"', r'"k\u12"', 2, "invalid escape sequence")
    replaced("wrong_hex_escape.json", '"k"', r'"k\u12g4"', 2, "invalid escape sequence")

    def bytes_in_name(name, some, at=0):
        place = GOOD.index('"k"') + 1
        broken(name, GOOD[:place].encode() + some + GOOD[place:].encode(), place + at, "not UTF-8")

    bytes_in_name("latin1.json", b"caf\xe9", 3)
    bytes_in_name("byte_ff.json", b"\xff")
    bytes_in_name("overlong.json", b"\xc0\x80")
    bytes_in_name("surrogate_as_utf8.json", b"\xed\xa0\x80")
    bytes_in_name("cut_character.json", b"\xe2\x82")
    broken("utf16.json", GOOD.encode("utf-16"), None, "not a trace, but text in UTF-16")


def wrong_compression():
    good = gzip.compress(GOOD.encode() * 1, mtime=0)
    larger = gzip.compress((HEAD + ",\n".join(EVENT.replace("1.5", str(i * 7919 % 100000)) for i in range(400)) + TAIL).encode(), mtime=0)
    whole = "of the compressed file"
    broken("cut_in_header.json.gz", good[:6], None, f"at byte 6 {whole}: ", "cut off")
    broken("cut.json.gz", larger[: len(larger) // 2], None, f"at byte {len(larger) // 2} {whole}: ", "cut off")
    broken("no_trailer.json.gz", good[:-8], None, f"at byte {len(good) - 8} {whole}: ", "cut off")
    broken("wrong_checksum.json.gz", good[:-8] + struct.pack("<I", 1) + good[-4:], None, whole, "checksum")
    broken("wrong_method.json.gz", good[:2] + b"\7" + good[3:], None, whole, "damaged gzip data")
    broken("wrong_block.json.gz", good[:10] + b"\x07" + good[11:], None, whole, "damaged gzip data")
    broken("text_behind.json.gz", good + b"and so on", None, f"at byte {len(good)} {whole}: ", "data after the end of the gzip data")
    broken("second_member_cut.json.gz", good + good[:15], None, f"at byte {len(good) + 15} {whole}: ", "cut off")
    broken("nothing_within.json.gz", gzip.compress(b"", mtime=0), None, "the file is empty")
    broken("wrong_json.json.gz", gzip.compress(GOOD.replace('"ph": "X"', '"ph" "X"', 1).encode(), mtime=0), GOOD.index('"ph"') + 5, "expected ':'")
    packed = zstd(GOOD.encode())
    broken("cut.json.zst", packed[: len(packed) // 2], None, f"at byte {len(packed) // 2} {whole}: ", "cut off")
    broken("wrong_header.json.zst", packed[:4] + b"\xff\xff\xff" + packed[7:], None, whole, "damaged zstd data")
    add("zeros_behind.json.gz", good + b"\0" * 512, 0, events=2)
    add("two_members.json.gz", gzip.compress(GOOD[:100].encode(), mtime=0) + gzip.compress(GOOD[100:].encode(), mtime=0), 0, events=2)


def rest_is_usable():
    usable("negative_duration.json", changed('"dur": 2', '"dur": -2'), "negative duration", events=1)
    usable("no_ts.json", changed('"ts": 1.5, ', ""), "without 'ts'", events=1)
    usable("ts_is_text.json", changed("1.5", '"soon"'), "'ts' or 'dur' is not a number", events=1)
    usable("ts_is_null.json", changed("1.5", "null"), "'ts' or 'dur' is not a number", events=1)
    usable("ts_too_large.json", changed("1.5", "1e30"), "does not fit in 64 bits", events=1)
    usable("dur_too_large.json", changed('"dur": 2', '"dur": 9223372036854775'), "does not fit in 64 bits", events=1)
    usable("no_dur.json", changed(', "dur": 2', ""), "complete events without 'dur'")
    usable("unknown_phase.json", changed('"X"', '"Q"'), "phase", events=1)
    usable("no_phase.json", changed('"ph": "X", ', ""), "phase", events=1)
    usable("no_objects.json", 'null,\n[],\n"x",\n17', "not objects", count=4, events=1)
    usable("nan.json", changed('"stream": 7', '"stream": 7, "occupancy": NaN'), "NaN or Infinity")
    usable("infinity.json", changed('"stream": 7', '"GB/s": -Infinity, "stream": 7'), "NaN or Infinity")
    usable("unknown_action.json", '{"ph": "i", "cat": "shardlens", "name": "?", "pid": 0, "tid": 0, "ts": 3, "args": {"op": "sing"}}', "shardlens instants")
    usable("base_is_text.json", EVENT, "baseTimeNanoseconds is not an integer", head=HEAD.replace("{", '{"baseTimeNanoseconds": "late",\n', 1))
    usable("base_too_large.json", changed("1.5", "2000000000000000"), "with the base time added",
           head=HEAD.replace("{", '{"baseTimeNanoseconds": 9223372036854775000,\n', 1), count=2, events=0)
    add("no_rank.json", '{"traceEvents": [' + EVENT + "]}", 0, "contains a rank", events=1, count=1)
    add("byte_order_mark.json", b"\xef\xbb\xbf" + GOOD.encode(), 0, events=2)
    add("half_surrogate_pair.json", GOOD.replace('"k"', r'"k\ud800"', 1), 0, events=2)
    add("same_key_twice.json", GOOD.replace('"ts": 1.5', '"ts": -1, "ts": 1.5', 1), 0, events=2)
    add("large_ids.json", GOOD.replace('"tid": 7', '"tid": 99999999999999999999', 1), 0, events=2)
    add("odd_types.json", GOOD.replace('"name": "k"', '"name": [1, {"a": null}]', 1).replace('"stream": 7', '"stream": {}, "correlation": "x", "External id": -4', 1), 0,
        events=2)


def main():
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for part in (no_trace, cut_off, wrong_grammar, wrong_text, wrong_compression, rest_is_usable):
        part()
    for old in directory.iterdir():
        old.unlink()
    for name, (content, _) in corpus.items():
        (directory / name).write_bytes(content)
    lines = [f"  {json.dumps(name)}: {json.dumps(expected)}" for name, (_, expected) in sorted(corpus.items())]
    (directory / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(corpus)} files")


if __name__ == "__main__":
    main()
