"""`python chainless.py ...` is `meshnet ...` of a time when nodes handed nothing on.

It has streams and caches, says nothing of chains or peers, and refuses what it does not know.
"""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from meshnet.cli.main import main
from meshnet.core.protocol import codec
from meshnet.core.vocabulary import NodeDescription
from meshnet.wire import stream_server

told_today = codec.encode_node


def told_then(description: NodeDescription) -> bytes:
    return told_today(replace(description, chain=False, peers=()))


if __name__ == "__main__":
    with (
        patch.object(codec, "encode_node", told_then),
        patch.object(stream_server, "is_chained", lambda number: False),
    ):
        main()
