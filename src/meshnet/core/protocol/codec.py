"""The protocol's bytes, one name for each direction of each message.

request   encode_request      parse_head(...).finish(body)      activation_of for old peers
reply     encode_reply        decode_reply
reserve   encode_reserve      decode_reserve
          encode_reserved | encode_refusal                      decode_reserve_reply
node      encode_node         decode_node
session   encode_session      decode_session
"""

from __future__ import annotations

from meshnet.core.protocol.description import (
    decode_node,
    decode_session,
    encode_node,
    encode_session,
)
from meshnet.core.protocol.refusals import decode_refusal, encode_refusal
from meshnet.core.protocol.replies import decode_reply, encode_reply
from meshnet.core.protocol.requests import (
    RequestHead,
    activation_of,
    encode_request,
    parse_head,
)
from meshnet.core.protocol.reservations import (
    decode_reserve,
    decode_reserve_reply,
    encode_reserve,
    encode_reserved,
)

__all__ = [
    "RequestHead",
    "activation_of",
    "decode_node",
    "decode_refusal",
    "decode_reply",
    "decode_reserve",
    "decode_reserve_reply",
    "decode_session",
    "encode_node",
    "encode_refusal",
    "encode_reply",
    "encode_request",
    "encode_reserve",
    "encode_reserved",
    "encode_session",
    "parse_head",
]
