"""The prefix digest is a function of the ids alone."""

from __future__ import annotations

import struct
from hashlib import blake2b

from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.core.protocol.digest import PrefixDigest

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def test_the_digest_is_blake2b_of_little_endian_words():
    """Pit A66. It is the same in every process, whatever its hash seed."""
    expected = blake2b(struct.pack("<3I", 1, 2, 2**32 - 1), digest_size=8).hexdigest()

    digest = PrefixDigest.of((1, 2, 2**32 - 1))

    assert digest.hex == expected
    assert digest.length == 3


def test_extending_leaves_the_shorter_prefix_as_it_was():
    short = PrefixDigest.of([1, 2])
    before = short.hex

    longer = short.extend([3])

    assert (short.hex, short.length) == (before, 2)
    assert longer == PrefixDigest.of([1, 2, 3])


def test_equal_lengths_with_different_ids_differ():
    assert PrefixDigest.of([1, 2]) != PrefixDigest.of([2, 1])
    assert len({PrefixDigest.of([1]), PrefixDigest.of([1]), PrefixDigest()}) == 2


@settings(derandomize=True, deadline=None)
@given(IDS, IDS)
def test_pieces_do_not_matter(first, second):
    assert PrefixDigest.of(first).extend(second) == PrefixDigest.of([*first, *second])
