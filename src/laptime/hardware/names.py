"""Normalizes device names: ignores case, blanks, dashes and words such as vendor names.

Whole names are compared, never substrings: an L40S is not an L4.
"""

from __future__ import annotations

import re

# "NVIDIA A100 Tensor Core GPU" and "Intel(R) Core(TM) i7-3820 CPU @ 3.60GHz" name an a100 and an i7-3820.
_IGNORED = frozenset(
    ("nvidia", "amd", "intel", "geforce", "tesla", "instinct", "tensor", "core", "gpu", "cpu", "processor")
)
_DECORATION = re.compile(r"\((?:r|tm)\)|[®™]|@.*$|\b\d+-core\b|\b\d+th gen\b")
_WORD = re.compile(r"[a-z0-9+]+")
_OTHER_CARD = frozenset(("ti", "super", "laptop", "mobile", "ada", "nvl"))  # an RTX 3090 Ti is no RTX 3090
_GIGABYTES = re.compile(r"^(\d+)(?:g|gb|gib)$")


def words(text: str) -> list[str]:
    """The words of a name that tell devices apart: `Tesla V100-SXM2-16G` is v100, sxm2, 16gb."""
    bare = _DECORATION.sub(" ", text.lower())
    useful = (word for word in _WORD.findall(bare) if word not in _IGNORED)
    return [_GIGABYTES.sub(r"\1gb", word) for word in useful]


def key(text: str) -> str:
    """The normalized name."""
    return "".join(words(text))


def runs(label: str) -> list[str]:
    """The keys of all runs of words in a label, longest first. A count such as `8x` is no word."""
    parts = words(re.sub(r"\b\d+x\s*(?=[a-z])", " ", label.lower()))
    ends = [end for end in range(1, len(parts)) if parts[end] not in _OTHER_CARD] + [len(parts)]
    keys = {"".join(parts[start:end]) for end in ends for start in range(end)}
    return sorted(keys, key=lambda name: (-len(name), name))
