"""What a stream of lines tells about tokens and times, under a clock of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from meshnet.cli.bench.completions import CompletionFailed, Reading


def piece(text: str, finish: str | None = None) -> bytes:
    return frame({"choices": [{"text": text, "finish_reason": finish}]})


def usage(tokens: int) -> bytes:
    return frame({"choices": [], "usage": {"completion_tokens": tokens}})


def frame(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\r"


def reading(*times: float) -> Reading:
    ticks: Iterator[float] = iter(times)
    return Reading(lambda: next(ticks))


def test_each_piece_of_text_is_an_arrival_after_the_request():
    read = reading(10.0, 10.5, 11.0)

    heard = [read.line(line) for line in (piece("a"), b"", b": keep-alive", piece("b"), usage(2))]

    stream = read.stream(2)
    assert heard == [True, False, False, True, False]
    assert (stream.at_s, stream.text, stream.tokens) == ((0.5, 1.0), "ab", 2)


def test_the_end_of_an_answer_is_no_arrival():
    read = reading(10.0, 10.5)
    for line in (piece("a"), piece("", "length"), usage(1), b"data: [DONE]"):
        read.line(line)

    assert read.stream(1).at_s == (0.5,)


def test_two_tokens_in_one_piece_are_counted_by_the_usage():
    read = reading(0.0, 1.0, 3.0)
    for line in (piece("a"), piece("bc"), usage(3)):
        read.line(line)

    stream = read.stream(3)
    assert (stream.tokens, stream.at_s, stream.tokens_per_s) == (3, (1.0, 3.0), 1.0)


def test_a_token_without_text_arrives_with_the_end():
    read = reading(0.0, 2.0)
    read.line(usage(1))

    assert read.stream(1).at_s == (2.0,)


def test_another_number_of_tokens_is_no_measurement():
    read = reading(0.0, 1.0)
    for line in (piece("a"), usage(1)):
        read.line(line)

    with pytest.raises(CompletionFailed, match="asked for 5 tokens, got 1"):
        read.stream(5)


def test_a_stream_without_usage_is_no_measurement():
    read = reading(0.0, 1.0)
    read.line(piece("a"))

    with pytest.raises(CompletionFailed, match="got None"):
        read.stream(1)


def test_an_error_inside_the_stream_is_told():
    with pytest.raises(CompletionFailed, match="overloaded"):
        reading(0.0).line(frame({"error": {"message": "overloaded"}}))
