"""What left a shard's layers for the positions of a session, kept to be sent again (ADR-0041).

    rows   0 .. length      one row a position, as bytes of the wire
           ^ put at the past length of a step: a shortened session's rows go with it

Invariants
    * rows of all positions from 0 on, or none: after a gap nothing is kept any more;
    * a reader sees whole rows at any time: it copies them at once, while a step may add others.
"""

from __future__ import annotations

from meshnet.core.vocabulary import HIDDEN, Activation, TensorSpec


class LeavingRows:
    """Grows in place: what is kept already is not copied for a new row."""

    __slots__ = ("_row_bytes", "_rows", "_spec")

    def __init__(self, row_bytes: int) -> None:
        """`row_bytes`: of one position; 0 keeps nothing."""
        self._row_bytes = row_bytes
        self._rows: bytearray | None = bytearray() if row_bytes else None
        self._spec: TensorSpec | None = None

    @property
    def nbytes(self) -> int:
        """Bytes kept. What the buffer has beyond them was never touched."""
        return 0 if self._rows is None else len(self._rows)

    def put(self, past_length: int, leaving: object) -> None:
        """Keep what left the layers, from `past_length` on."""
        rows, begin = self._rows, past_length * self._row_bytes
        if rows is None:
            return
        if not isinstance(leaving, Activation) or len(rows) < begin or not self._fits(leaving):
            self.drop()
            return
        if len(rows) > begin:
            del rows[begin:]
        rows += leaving.data

    def activation(self, start: int, stop: int) -> Activation:
        """Return the rows of positions [start, stop), which must be kept."""
        assert self._rows is not None, "nothing is kept"
        assert self._spec is not None, "nothing was kept yet"
        data = self._rows[start * self._row_bytes : stop * self._row_bytes]
        *_, hidden_size = self._spec.shape
        spec = TensorSpec(HIDDEN, self._spec.dtype, (1, stop - start, hidden_size))
        return Activation((spec,), data)

    def drop(self) -> None:
        """Keep nothing from now on."""
        self._rows = None

    def _fits(self, leaving: Activation) -> bool:
        """Whether it is one tensor, whose last axes are positions and a row of the usual size."""
        spec = leaving.hidden
        positions = spec.shape[-2] if len(spec.shape) > 1 else 0
        usual = len(leaving.data) == positions * self._row_bytes and len(leaving.tensors) == 1
        if self._spec is None:
            self._spec = spec
        return usual and spec.dtype is self._spec.dtype
