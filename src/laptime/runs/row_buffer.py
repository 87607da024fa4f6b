"""Rows of one table on their way to the disk."""

from __future__ import annotations

from collections import deque
from typing import Any


class RowBuffer:
    """Rows that are not on disk yet, and what became of all that came before. Its owner locks it."""

    def __init__(self) -> None:
        self._pieces: deque[Any] = deque()
        self.rows = 0  # in memory
        self.waiting = 0  # of these, refused by the disk once
        self.written = 0
        self.lost = 0

    def append(self, piece: Any) -> None:
        """Add rows."""
        self._pieces.append(piece)
        self.rows += piece.num_rows

    def take(self) -> list[Any]:
        """All rows, to be written; the caller then calls `wrote` or `give_back`."""
        pieces = list(self._pieces)
        self._pieces.clear()
        self.rows = self.waiting = 0
        return pieces

    def wrote(self, rows: int) -> None:
        """The rows from `take` are on disk."""
        self.written += rows

    def give_back(self, pieces: list[Any]) -> None:
        """The disk refused what was taken: it comes before whatever was appended meanwhile."""
        self._pieces.extendleft(reversed(pieces))
        self.waiting = sum(piece.num_rows for piece in pieces)
        self.rows += self.waiting

    def trim(self, most: int) -> None:
        """Drop the oldest rows past `most`, and count them: no training runs out of memory for us."""
        while self.rows > most and self._pieces:
            dropped = self._pieces.popleft().num_rows
            self.rows -= dropped
            self.waiting = max(0, self.waiting - dropped)
            self.lost += dropped
