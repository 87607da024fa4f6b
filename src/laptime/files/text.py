"""Text that others wrote, on its way to a terminal: no control characters, no bidirectional marks."""

from __future__ import annotations

from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def text_of(value: Any) -> str:
    """`str(value)` that UTF-8 can hold: a file name with undecodable bytes is written with escapes."""
    try:
        text = str(value)
    except Exception:  # someone else's __str__; a configuration is not worth a failed run
        text = f"<{type(value).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text: object) -> str:
    """`text` on one line: error messages promise that, whatever a path or a layer is called."""
    shown = text_of(text)
    return shown if shown.isprintable() else repr(shown)[1:-1]


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    return one_line(next(iter(str(error).splitlines()), "") or type(error).__name__)


def visible(text: str) -> str:
    """`text` with each character that a terminal would act on replaced by one that it shows.

    Line breaks and tabs stay. Terminal escapes, control characters and bidirectional marks are not printable
    by Python's rules; each is replaced by one character, so that styles and columns stay where they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else _REPLACEMENT for character in text
    )
