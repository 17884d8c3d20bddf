"""What one session is on one shard: the cache of its layers and, at the tail, its ids so far."""

from __future__ import annotations

from typing import Any

from meshnet.core.protocol.marks import Marks
from meshnet.core.vocabulary import LayerRange, ShardStep
from meshnet.engine.cache import allocated_bytes, grows_by_cells, sums_up
from meshnet.engine.history import History
from meshnet.engine.kv import KEY_GRID


class SessionState:
    """One session on one shard: the cache of its layers and, at the tail, the ids so far."""

    __slots__ = ("_counted", "cache", "history", "layers", "length", "marks", "torn")

    def __init__(self, cache: Any, layers: LayerRange) -> None:
        self.cache = cache
        self.layers = layers
        self.length = 0
        self.history: History | None = History()
        """None once a peer left out ids: sampling is greedy from then on."""
        self.marks = Marks()
        self.torn = False
        self._counted: tuple[int, int] | None = None
        """Cells and bytes when the bytes were last counted."""

    @property
    def nbytes(self) -> int:
        """Allocated storage. Cells are counted again when the positions have crossed a border."""
        cells = -(-self.length // KEY_GRID)
        if self._counted is None or self._counted[0] != cells:
            held = allocated_bytes(self.cache)
            if not grows_by_cells(self.cache):
                return held
            self._counted = (cells, held)
        return self._counted[1]

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on, which the cache must be able to."""
        self.cache.truncate(length)
        self.length, self.marks, self._counted = length, self.marks.cut(length), None
        if self.history is not None:
            self.history.truncate(length)

    def undo(self) -> bool:
        """Forget what a step that failed midway wrote; False: some of it cannot be taken back."""
        lost = sums_up(self.cache) and self.length not in self.cache.copies
        if lost or not self.cache.can_truncate(self.length):
            return False
        self.truncate(self.length)
        self.torn = False
        return True

    def begin(self, step: ShardStep) -> None:
        """Copy what cannot be shortened, if a later turn may go back to where `step` begins."""
        known = step.length - step.drafts
        self._mark(self.marks.before(step.past_length, known, want_token=step.want_token))

    def end(self, step: ShardStep) -> None:
        """Copy it, if a later turn may go back to where `step` ended."""
        known = step.length - step.drafts
        self._mark(self.marks.after(self.length, known, want_token=step.want_token))

    def _mark(self, marks: Marks) -> None:
        if marks is not self.marks:
            self.marks = marks
            self.cache.keep_copies(marks.lengths)
