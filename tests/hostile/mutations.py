"""Changes of a file's content: bytes, numbers in a header, text, JSON, NumPy's and zip's structures."""

from __future__ import annotations

import gzip
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.lib import format as npy_format

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]
"""Hypothesis chooses."""
Changed = tuple[str, bytes]
"""A description of the change, and the content after it."""
Mutate = Callable[[Draw, bytes], Changed]

TEXTS = (
    "", " ", "0", "-1", "1", "1.5", "1e308", "1e999", "nan", "inf", "-inf", "9" * 400, "0x10", "1_000", "0_", "1;2",
    "1,5",
    "\x00", "é", "𝟙", "\u202e", "\n", "\r", "\t", '"', "'", "a" * 100_000, "../../outside/canary", "/dev/zero", "~",
    "null",
    "true", "2020-01-01", "12:30:45", "[1, 2]", "{a: 1}", "!!python/object/apply:os.getpid []", "*a", "&a [*a]", "%s%n",
    "${HOME}", "$(id)", "-", "--help", "<html>", "١", "½", "None", "NaN", "=1+1", "\ud800",
)  # fmt: skip
"""Replacements for a file that is not of its kind."""
NODES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 0.5, -0.5, 1e308, math.inf, math.nan, 2**31, 2**63, 2**70, -(2**63), "", "x",
    "é" * 300,
    "../../outside/canary", "/dev/zero", "1", [], {}, [[]], [None], [0], ["a", "b"], {"a": 1}, {"": ""},
    list(range(1000)),
)  # fmt: skip
"""Values that JSON or YAML can hold instead of the right one."""
_INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    17,
    64,
    127,
    128,
    255,
    256,
    512,
    1000,
    32767,
    65535,
    1 << 20,
    1 << 31,
    1 << 62,
)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e-30, 1e-6, 1e6, 1e30, 1e300, math.nan, math.inf, -math.inf)
_OTHERS = {
    "a page of HTML": b"<!DOCTYPE html><html><body>403 Forbidden</body></html>",
    "an empty file": b"",
    "a space": b" ",
    "a line feed": b"\n",
    "text": b"hello\n",
    "a pickle": b"\x80\x04\x95\x15\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06getpid\x94\x93\x94)R\x94.",
    "the start of a PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "the start of a zip": b"PK\x03\x04",
    "the start of HDF5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "the start of a gzip": b"\x1f\x8b\x08\x00",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
    "zeros": bytes(5000),
    "a UTF-16 mark": b"\xff\xfe",
}


def pick(draw: Draw, values: Sequence[T]) -> T:
    """One of them."""
    return draw(st.sampled_from(list(values)))


def number(draw: Draw, code: str) -> bytes:
    """A value of a `struct` code (its byte order first) that nobody expects, as bytes."""
    if code[-1] in "fd":
        return struct.pack(code, pick(draw, [v for v in _FLOATS if code[-1] == "d" or not 1e38 < abs(v) < math.inf]))
    size = struct.calcsize(code)
    value = draw(st.one_of(st.sampled_from(_INTEGERS), st.integers(0, (1 << (8 * size)) - 1)))
    return (value % (1 << (8 * size))).to_bytes(size, "big" if code[0] == ">" else "little")


def fields(draw: Draw, content: bytes, places: Mapping[str, tuple[int, str]]) -> Changed:
    """One to three numbers of a header, each at its offset."""
    done = []
    for name in draw(st.lists(st.sampled_from(sorted(places)), min_size=1, max_size=3, unique=True)):
        offset, code = places[name]
        value = number(draw, code)
        content = content[:offset] + value + content[offset + len(value) :]
        done.append(f"{name} = {struct.unpack(code, value)[0]!r}")
    return ", ".join(done), content


def cut(draw: Draw, content: bytes) -> tuple[str, bytes]:
    """Without its end."""
    size = draw(st.one_of(st.integers(0, max(0, len(content) - 1)), st.just(max(0, len(content) - 1))))
    return f"cut to {size} of {len(content)} bytes", content[:size]


def damage(draw: Draw, content: bytes) -> Changed:
    """Bytes flipped, blanked, doubled, taken out or added, wherever."""
    size = len(content)
    at = draw(st.one_of(st.integers(0, max(0, size - 1)), st.integers(0, max(0, min(size, 600) - 1))))
    length = draw(st.sampled_from((1, 2, 4, 8, 64, 512, 4096)))
    block = content[at : at + length]
    how = pick(draw, ("flipped", "zeros", "ones", "doubled", "out", "junk at the end", "zeros at the end", "random"))
    middle = {
        "flipped": bytes(b ^ (1 << (at % 8)) for b in block[:1]) + block[1:],
        "zeros": bytes(len(block)),
        "ones": b"\xff" * len(block),
        "doubled": block * 2,
        "out": b"",
        "random": np.random.default_rng(at).bytes(len(block)),
    }.get(how)
    if middle is None:
        return f"{length} bytes of {how}", content + (bytes(length) if how[0] == "z" else b"\xa5" * length)
    return f"bytes {at} to {at + len(block)} {how}", content[:at] + middle + content[at + len(block) :]


def another(draw: Draw, content: bytes) -> Changed:
    """Something else under the file's name."""
    name = pick(draw, sorted(_OTHERS))
    return f"is {name}", _OTHERS[name]


def lines(draw: Draw, content: bytes) -> Changed:
    """Text: a line or a value in it out, twice, elsewhere, or something else; another encoding or separator."""
    how = pick(draw, ("value", "value", "value", "out", "twice", "swapped", "separator", "encoding", "added", "header"))
    rows = content.decode("utf-8", "surrogateescape").split("\n")
    at = draw(st.one_of(st.integers(0, min(3, len(rows) - 1)), st.integers(0, len(rows) - 1)))
    if how in ("value", "header"):
        at = 0 if how == "header" else at
        cells = rows[at].split(",")
        cell, text = draw(st.integers(0, len(cells) - 1)), pick(draw, TEXTS)
        cells[cell] = text
        rows[at], what = ",".join(cells), f"line {at + 1}, value {cell + 1} is {text[:40]!r}"
    elif how == "out":
        what = f"line {at + 1} out"
        del rows[at]
    elif how == "twice":
        what = f"line {at + 1} twice"
        rows.insert(at, rows[at])
    elif how == "swapped":
        what = f"line {at + 1} and the last but one swapped"
        rows[at], rows[-2 % len(rows)] = rows[-2 % len(rows)], rows[at]
    elif how == "added":
        text = pick(draw, TEXTS)
        what = f"a line {text[:40]!r} after {at}"
        rows.insert(at, text)
    elif how == "separator":
        mark = pick(draw, (";", "\t", "|", ",,", "\0", '"'))
        return f"commas are {mark!r}", content.replace(b",", mark.encode())
    else:
        return _encoded(draw, content)
    return what, "\n".join(rows).encode(
        "utf-8", "surrogatepass" if "\ud800" in "".join(rows[at : at + 1]) else "replace"
    )


def _encoded(draw: Draw, content: bytes) -> Changed:
    ways: dict[str, Callable[[bytes], bytes]] = {
        "utf-16": lambda c: c.decode("utf-8", "replace").encode("utf-16"),
        "utf-16-be, no mark": lambda c: c.decode("utf-8", "replace").encode("utf-16-be"),
        "with a mark": lambda c: b"\xef\xbb\xbf" + c,
        "with CR LF": lambda c: c.replace(b"\n", b"\r\n"),
        "with CR": lambda c: c.replace(b"\n", b"\r"),
        "in one line": lambda c: c.replace(b"\n", b" "),
        "latin-1": lambda c: "é".encode("latin-1") + c,
        "with a NUL": lambda c: c[: len(c) // 2] + b"\0" + c[len(c) // 2 :],
    }
    name = pick(draw, sorted(ways))
    return f"text {name}", ways[name](content)


def tree(draw: Draw, value: Any) -> tuple[str, Any]:
    """JSON or YAML: a node out, another value, another name, or one too many."""
    places = [path for path in _paths(value) if path]
    how = pick(draw, ("value", "value", "value", "out", "renamed", "added", "deep", "whole"))
    if how == "whole" or not places:
        other = pick(draw, NODES)
        return f"all of it is {_short(other)}", other
    path = pick(draw, places)
    parent = value = json.loads(json.dumps(value))  # a copy
    for step in path[:-1]:
        parent = parent[step]
    key, name = path[-1], ".".join(map(str, path))
    if how == "value":
        parent[key] = pick(draw, NODES)
        return f"{name} is {_short(parent[key])}", value
    if how == "deep":
        parent[key] = json.loads("[" * 500 + "]" * 500)
        return f"{name} is 500 lists deep", value
    if how == "out":
        del parent[key]
        return f"{name} out", value
    if isinstance(parent, list):
        parent.append(pick(draw, NODES))
        return f"one more at {name}", value
    parent[pick(draw, TEXTS[:40])] = parent.pop(key) if how == "renamed" else pick(draw, NODES)
    return f"{name} {how}", value


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value[:20]) if isinstance(value, list) else ()
    return [at, *(path for key, child in inside for path in _paths(child, (*at, key)))]


def _short(value: Any) -> str:
    return repr(value)[:60]


def json_text(draw: Draw, content: bytes) -> Changed:
    """A JSON file: its tree, or its text."""
    if pick(draw, range(5)) == 3:
        return lines(draw, content)
    what, value = tree(draw, json.loads(content))
    return what, json.dumps(value).encode()


# ---------------------------------------------------------------- NumPy


def npy(draw: Draw, content: bytes) -> Changed:
    """A .npy file: what its header says, or its content as another type."""
    file = io.BytesIO(content)
    npy_format.read_magic(file)
    shape, order, dtype = npy_format.read_array_header_1_0(file)
    body = content[file.tell() :]
    said: dict[str, Any] = {"descr": dtype.str, "fortran_order": order, "shape": shape}
    how = pick(draw, ("shape", "shape", "descr", "order", "key out", "key added", "header", "values", "values"))
    if how == "values":
        return _values(draw, np.frombuffer(body, dtype).reshape(shape))
    if how == "shape":
        sizes = list(shape) or [1]
        at = draw(st.integers(0, len(sizes) - 1))
        sizes[at] = draw(
            st.sampled_from((0, -1, 1, sizes[at] + 1, sizes[at] - 1, 32000, 1 << 31, 1 << 62, 1.5, "a", None))
        )
        said["shape"] = tuple(pick(draw, (sizes, sizes, sizes[::-1], sizes[1:], [*sizes, 1], [*sizes, 1 << 20])))
    elif how == "descr":
        said["descr"] = pick(draw, ("|O", "<U4", "<f2", ">f4", "<f8", "<c8", "|V8", "<M8[s]", "|b1", "|S9", "<x9", "",
        7, None,
                                    [("a", "<f4")], "<U999999999", "|S0"))  # fmt: skip
    elif how == "order":
        said["fortran_order"] = pick(draw, (not order, 1, "x", None))
    elif how == "key out":
        del said[pick(draw, sorted(said))]
    elif how == "key added":
        said["x" * draw(st.sampled_from((1, 20000)))] = 1
    text = (
        repr(said) if how != "header" else pick(draw, ("", "{", "1", "(" * 2000, "__import__('os')", "{'a': 1}", "\0"))
    )
    return f"header {text[:120]}", _npy(text, body)


def _npy(header: str, body: bytes) -> bytes:
    text = header.encode("latin-1")
    text += b" " * (-(len(text) + 13) % 64) + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + body


def _values(draw: Draw, array: np.ndarray) -> Changed:
    """An honest file of other values."""
    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "NaN": lambda a: np.full(a.shape, np.nan, np.float32),
        "one NaN": lambda a: np.where(np.arange(a.size).reshape(a.shape) == a.size // 2, np.nan, a.astype(float)),
        "infinite": lambda a: np.full(a.shape, np.inf, np.float32),
        "zeros": np.zeros_like,
        "huge": lambda a: np.full(a.shape, 1e300),
        "negative": lambda a: -np.abs(a.astype(float)) - 1,
        "complex": lambda a: a.astype(complex),
        "text": lambda a: a.astype("U8"),
        "bool": lambda a: a.astype(bool),
        "uint64": lambda a: np.full(a.shape, 2**64 - 1, np.uint64),
        "objects": lambda a: np.array([None]),
        "empty": lambda a: a[:0],
        "turned": lambda a: a.T,
        "flat": lambda a: a.ravel(),
        "one value": lambda a: a.ravel()[:1],
        "a number": lambda a: a.ravel()[0],
        "one axis more": lambda a: a[None],
        "times": lambda a: np.zeros(a.shape, "M8[s]"),
        "structured": lambda a: np.zeros(a.shape, [("a", "f4")]),
        "big endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
        "backwards": lambda a: a[::-1],
    }
    name = pick(draw, sorted(ways))
    if array.dtype.kind in "US" and name not in ("objects", "empty", "flat", "one value", "one axis more"):
        name = "objects"
    file = io.BytesIO()
    with np.errstate(all="ignore"):
        np.save(file, ways[name](array), allow_pickle=True)
    return f"values: {name}", file.getvalue()


def npz(draw: Draw, content: bytes) -> Changed:
    """An .npz file: one of its arrays, or the archive around them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = pick(draw, sorted(members))
    how = pick(draw, ("array", "array", "array", "array", "out", "renamed", "twice", "odd name", "bomb", "bytes"))
    if how == "array":
        what, members[name] = npy(draw, members[name])
        return f"{name}: {what}", _zip(list(members.items()))
    if how == "bytes":
        what, members[name] = damage(draw, members[name])
        return f"{name}: {what}", _zip(list(members.items()))
    if how == "bomb":
        del members[name]
        return f"{name} is 3 GB of zeros", _zip([*members.items()], bomb=name)
    entries = [*members.items()]
    if how == "twice":
        entries.append((name, members[name]))
    else:
        del entries[[n for n, _ in entries].index(name)]
        if how == "renamed":
            entries.append((pick(draw, sorted(members)), members[name]))
        elif how == "odd name":
            entries.append(
                (pick(draw, ("../../outside/x.npy", "/x.npy", "x", ".npy", "é.npy", "a/b.npy")), members[name])
            )
    return f"{name} {how}", _zip(entries)


def _zip(entries: Sequence[tuple[str, bytes]], bomb: str = "") -> bytes:
    import warnings

    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that stands twice
        for name, body in entries:
            archive.writestr(name, body)
    return file.getvalue() if not bomb else _with_bomb(file.getvalue(), bomb)


BOMB = 3 << 30
"""Bytes that a bomb becomes."""
_BLOCK = 16 << 20


@cache
def _bomb() -> tuple[bytes, int]:
    """A deflate stream of a .npy header and `BOMB` zeros, and its checksum."""
    header = _npy(repr({"descr": "|u1", "fortran_order": False, "shape": (BOMB >> 20, 1024, 1024)}), b"")
    squeeze, zeros = zlib.compressobj(9, zlib.DEFLATED, -15), bytes(_BLOCK)
    start = squeeze.compress(header) + squeeze.flush(zlib.Z_FULL_FLUSH)
    block = squeeze.compress(zeros) + squeeze.flush(zlib.Z_FULL_FLUSH)  # the same bytes again, each time
    checksum = zlib.crc32(header)
    for _ in range(BOMB // _BLOCK):
        checksum = zlib.crc32(zeros, checksum)
    return start + block * (BOMB // _BLOCK) + squeeze.flush(), checksum


def _with_bomb(archive: bytes, name: str) -> bytes:
    """The archive with one entry more."""
    stream, checksum = _bomb()
    size = len(_npy(repr({"descr": "|u1", "fortran_order": False, "shape": (BOMB >> 20, 1024, 1024)}), b"")) + BOMB
    end = archive.rindex(b"PK\x05\x06")
    count, length, start = struct.unpack("<HII", archive[end + 10 : end + 20])
    entries, directory = archive[:start], archive[start:end]
    local = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, checksum, len(stream), size, len(name), 0)
    central = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, 0, 8, 0, 33, checksum, len(stream), size,
    len(name),
                                          0, 0, 0, 0, 0, len(entries)) + name.encode()  # fmt: skip
    body = entries + local + name.encode() + stream
    tail = struct.pack("<HHHHIIH", 0, 0, count + 1, count + 1, length + len(central), len(body), 0)
    return body + directory + central + b"PK\x05\x06" + tail


@cache
def zeros_gzipped() -> bytes:
    """A gzip of `BOMB` zeros, in many members."""
    return gzip.compress(bytes(_BLOCK), 9) * (BOMB // _BLOCK)


def gzipped(inner: Mutate) -> Mutate:
    """A gzip: what is in it, or a bomb after it."""

    def mutate(draw: Draw, content: bytes) -> Changed:
        if pick(draw, range(20)) == 7:
            return "3 GB of zeros at its end", content + zeros_gzipped()
        what, body = inner(draw, gzip.decompress(content))
        return what, gzip.compress(body, 1)

    return mutate


# ---------------------------------------------------------------- TIFF


def tiff(draw: Draw, content: bytes) -> Changed:
    """A TIFF: one to three of the tags of one of its pages, its chain of pages, its offsets."""
    big = content[2:4] == b"+\0"
    start = struct.unpack("<Q", content[8:16])[0] if big else struct.unpack("<I", content[4:8])[0]
    count = struct.unpack("<Q" if big else "<H", content[start : start + (8 if big else 2)])[0]
    head, width = (8, 20) if big else (2, 12)
    word = "<Q" if big else "<I"
    places: dict[str, tuple[int, str]] = {"first page": (8 if big else 4, word), "tags": (start, "<Q" if big else "<H")}
    for at in range(count):
        entry = start + head + at * width
        tag = struct.unpack("<H", content[entry : entry + 2])[0]
        places[f"tag {tag}'s value"] = (entry + width - (8 if big else 4), word)
        places[f"tag {tag}'s type"] = (entry + 2, "<H")
        places[f"tag {tag}'s count"] = (entry + 4, word)
        places[f"tag {tag}'s number"] = (entry, "<H")
    places["next page"] = (start + head + count * width, word)
    return fields(draw, content, places)
