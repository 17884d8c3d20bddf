"""What one part of a step allows another to say, however it came: by request or by frame."""

from __future__ import annotations

from meshnet.core.protocol import headers as h
from meshnet.core.protocol.messages import ForwardRequest, Mode
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


def check_replay(request: ForwardRequest) -> None:
    """Raise BadField unless a replay is one of ids, proved by their digest, and nothing else."""
    plain = not (request.drafts or request.truncate or request.want_token or request.adopt)
    asked = request.mode is Mode.DECODE and request.prefix is not None and request.tokens
    if not (plain and asked) or request.activation is not None or len(request.raw):
        expected = f"ids in a decode with {h.PREFIX} that draws, guesses and shortens nothing"
        raise BadField(h.REPLAY, expected, request.mode.value)


def check_fill(request: ForwardRequest) -> None:
    """Raise BadField unless a fill is a step of a session that draws nothing."""
    if request.mode is Mode.STATELESS or request.want_token or request.adopt is not None:
        raise BadField(h.FILL, "a step of a session that draws and adopts nothing", "another")


def check_recovery(request: ForwardRequest) -> None:
    """Check what a step of a recovery may say. Raises BadField."""
    if request.replay:
        check_replay(request)
    if request.fill:
        check_fill(request)
