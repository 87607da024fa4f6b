"""Files as an accident or an enemy leaves them: mutations of bytes, and of the values inside a document."""

import copy
import json
import random

HOSTILE = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**30,
    1e308,
    -1e308,
    1e-320,
    "",
    "0",
    "nan",
    "x" * 20_000,
    "\x1b[31mred\x1b[0m\u202eevil\x00",
    "0001-01-01T00:00:00+00:00",
    "9999-12-31T23:59:59-12:00",
    "../../etc/passwd",
    [],
    {},
    [[]],
    [1, "a", None],
    {"a": {"b": []}},
    [0.1] * 1000,
)
TEXTS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    "[" * 3000 + "]" * 3000,
    '{"a":' * 500 + "1" + "}" * 500,
)


def of_values(document: object, rng: random.Random) -> object:
    """The document with one to three of its values replaced, left out, or given twice."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(list(_places(document)) or [(None, None)])
        if holder is None:
            return rng.choice(HOSTILE)
        action = rng.random()
        if action < 0.15 and isinstance(holder, dict):
            del holder[key]
        elif action < 0.25 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif action < 0.3 and isinstance(holder, dict):
            holder[rng.choice(("", "unknown", "\x1b]0;x\x07"))] = copy.deepcopy(rng.choice(HOSTILE))
        else:
            holder[key] = copy.deepcopy(rng.choice(HOSTILE))
    return document


def of_json(document: object, rng: random.Random) -> bytes:
    """As text; now and then with what `json.dumps` does not write."""
    text = json.dumps(of_values(document, rng))
    if rng.random() < 0.15:
        place = rng.randrange(len(text))
        colon = text.find(":", place)
        if colon > 0:
            text = text[: colon + 1] + rng.choice(TEXTS) + text[colon + 1 :].lstrip(" -0123456789.truefalsn")
    return text.encode()


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, repeated, filled or moved; the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        length = min(rng.choice((1, 2, 8, 64, 512)), len(changed) - at)
        action = rng.randrange(7)
        if action == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            del changed[at : at + length]
        elif action == 2:
            changed[at:at] = changed[at : at + length] * rng.choice((1, 3, 50))
        elif action == 3:
            changed[at : at + length] = bytes([rng.choice((0, 255, 32, 48, 91))]) * length
        elif action == 4:
            del changed[at:]
        elif action == 5:
            changed[at : at + length] = rng.randbytes(length)
        else:
            changed[at:at] = rng.choice(
                (b"9" * 400, b"[" * 2000, b"1e999", b"\x1b[2J", b"-", b"\xff\xfe", b"." * 500)
            )
    return bytes(changed)


def of_text(text: str, rng: random.Random) -> bytes:
    """A word replaced by a hostile one, or the bytes changed."""
    if rng.random() < 0.4:
        return of_bytes(text.encode(), rng)
    lines = text.splitlines(keepends=True)
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.randrange(len(lines))
        words = lines[place].split(" ")
        word = rng.choice([*TEXTS, *map(str, HOSTILE)])
        words[rng.randrange(len(words))] = word
        lines[place] = " ".join(words)
    return "".join(lines).encode("utf-8", "replace")


def _places(document: object):
    """(holder, key) of every value inside."""
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        inner = (
            list(holder.items())
            if isinstance(holder, dict)
            else list(enumerate(holder))
            if isinstance(holder, list)
            else []
        )
        for key, value in inner:
            yield holder, key
            waiting.append(value)
