"""What is in a saved file, without what differs from one time to the next: for comparing two of them."""

from __future__ import annotations

import hashlib
import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from typing import Any

STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
PUTS = {"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"}
GETS = {"BINGET", "LONG_BINGET", "GET"}
PICKLES = {b"\x80\x02", b"\x80\x04", b"\x80\x05"}  # how pickles begin, by protocol
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch begins a tensor in a plain pickle
HEAD = 1024  # bytes within which it names its storage
LONG = 256  # bytes, of which a digest is compared
CODE = (".py", ".debug_pkl")  # TorchScript, and the lines of Python from which it was made
STACK = re.compile(r'"stack_trace": "(?:[^"\\]|\\.)*"')  # where in Python an exported operation was called

Content = list[tuple[str, Any]]


def content(file: bytes) -> Content:
    """Members with what they hold; a plain pickle is one."""
    found = [(name, _plain(name, member)) for name, member in _members(file) if not name.endswith(CODE)]
    # TorchScript puts a class into a file of its own where the process has one of this name already.
    code = [member.decode() for name, member in _members(file) if name.endswith(".py")]
    return [*found, ("code", sorted(_numberless("".join(code)).splitlines()))] if code else found


def mentions(file: bytes) -> int:
    """How often laptime is named in a file, its compressed members included."""
    return sum(name.count("laptime") + member.count(b"laptime") for name, member in _members(file))


def difference(first: Content, second: Content) -> str:
    """Where the contents of two files begin to differ; "" where they are the same."""
    if [name for name, _ in first] != [name for name, _ in second]:
        return f"members {[name for name, _ in first]} against {[name for name, _ in second]}"
    for (name, expected), (_, given) in zip(first, second, strict=True):
        if expected == given:
            continue
        place = next(
            (i for i, pair in enumerate(zip(expected, given, strict=False)) if pair[0] != pair[1]),
            min(len(expected), len(given)),
        )
        around = slice(max(0, place - 3), place + 40)
        return f"{name} at {place}: {expected[around]!r} against {given[around]!r}"
    return ""


def _members(file: bytes) -> Iterator[tuple[str, bytes]]:
    if not file.startswith(b"PK"):
        yield "", file
        return
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("serialization_id"):
                yield name, archive.read(name)


def _is_pickle(file: bytes) -> bool:
    """Safetensors begin with a length of eight bytes, which may look like the protocol of a pickle."""
    return file[:2] in PICKLES and file[2:3] != b"\0"


def _plain(name: str, member: bytes) -> Any:
    if name.endswith(".pkl") or (not name and _is_pickle(member)):
        return _operations(member)
    if name.endswith(".json"):
        return _numberless(STACK.sub("", member.decode()))
    return _digest(member)


def _numberless(text: str) -> str:
    """Without the numbers of TorchScript classes, and without addresses of objects."""
    return re.sub(r"\.___torch_mangle_\d+|\b\d{12,}\b", "", text)


def _digest(value: bytes) -> bytes:
    return value if len(value) < LONG else hashlib.sha1(value).digest()


def _operations(pickled: bytes) -> list[tuple[str, Any]]:
    """A pickle's operations. Equal strings count as one, whether or not they were the same object."""
    found: list[tuple[str, Any]] = []
    memo: dict[int, tuple[str, Any]] = {}
    objects, last = 0, ""
    for operation, argument, _ in pickletools.genops(pickled):
        name = operation.name
        if name in ("FRAME", "PROTO"):
            continue
        if name in PUTS:
            key = len(memo) if name == "MEMOIZE" else argument
            memo[key] = found[-1] if last == "text" else ("object", objects)
            objects += last != "text"
            continue
        if name in STRINGS:
            item = ("text", _numberless(argument))
        elif name in GETS:
            item = memo[argument]
        elif isinstance(argument, bytes) and argument.startswith(LEGACY):
            item = ("tensor", _tensor(argument))  # whose operation depends on the length of its address
        elif isinstance(argument, bytes):
            item = (name, _digest(argument))
        else:
            item = (name, _numberless(argument) if isinstance(argument, str) else argument)
        found.append(item)
        last = item[0]
    return found


def _tensor(legacy: bytes) -> bytes:
    """A tensor without its address, by which torch names its storage twice before the numbers come."""
    head = re.sub(rb"X[\x08-\x10]\0\0\0\d{8,16}(?=q|a|U|K|\x8a|\x85)", b"", legacy[:HEAD])
    return _digest(head + legacy[HEAD:])
