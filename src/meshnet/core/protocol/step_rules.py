"""What one part of a step allows another to say, however it came: by request or by frame."""

from __future__ import annotations

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.messages import Mode
from meshnet.core.vocabulary import DRAFTS_MAX, BadField, SessionId


def check_truncation(mode: Mode, prefix: str | None) -> None:
    """Raise BadField for a session to be shortened without its ids' digest: nobody could tell."""
    if mode is not Mode.DECODE or prefix is None:
        raise BadField(h.TRUNCATE, f"a decode with {h.PREFIX} beside it", mode.value)


def check_adoption(
    mode: Mode, session: SessionId | None, adopt: SessionId, past_length: int, *, prefix: str | None
) -> None:
    """Raise BadField for positions of another session without their digest: whose are they?"""
    if mode is not Mode.DECODE or prefix is None or not past_length or adopt == session:
        expected = f"another session, in a decode of a past length with {h.PREFIX} beside it"
        raise BadField(h.ADOPT, expected, adopt)


def check_drafts(field: str, drafts: int, mode: Mode, *, tokens: int, want_token: bool) -> None:
    """Raise BadField unless the guesses follow an id that is none, and the last row is drawn."""
    asked = mode is Mode.DECODE and want_token
    if not asked or drafts > min(DRAFTS_MAX, tokens - 1):
        expected = f"at most {DRAFTS_MAX}, fewer than the tokens of a decode that wants a token"
        raise BadField(field, expected, drafts)
