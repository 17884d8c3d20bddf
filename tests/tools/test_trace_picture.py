"""The picture of a trace shows every span where it was."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tools.trace_picture import LEFT, RIGHT, WIDTH, Told, picture

SVG = "{http://www.w3.org/2000/svg}"
A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
SPANS = [
    Told("POST /v1/chat/completions", "", 0.0, 1.0),
    Told("generate", "", 0.0, 1.0),
    Told("queue", "", 0.0, 0.2),
    Told("prefill", "", 0.2, 0.5),
    Told("decode", "", 0.5, 1.0),
    Told("step decode", "", 0.5, 1.0),
    Told("hop decode", A, 0.55, 0.7),
    Told("compute", A, 0.6, 0.7),
    Told("hop decode", B, 0.75, 0.9),
    Told("compute", B, 0.75, 0.9),
]


def bars(name: str) -> list[tuple[float, float]]:
    """Place and width of the bars of that name."""
    root = ElementTree.fromstring(picture(SPANS))
    return [
        (float(bar.attrib["x"]), float(bar.attrib["width"]))
        for bar in root.iter(f"{SVG}rect")
        if (title := bar.find(f"{SVG}title")) is not None
        and (title.text or "").startswith(f"{name}:")
    ]


def test_a_span_is_as_long_as_its_part_of_the_whole():
    scale = WIDTH - LEFT - RIGHT

    assert bars("queue") == [(LEFT, round(0.2 * scale, 1))]
    assert bars("prefill") == [(round(LEFT + 0.2 * scale, 1), round(0.3 * scale, 1))]


def test_one_token_is_shown_again_with_the_hops_of_all_nodes():
    assert len(bars("step decode")) == 2
    assert len(bars("hop decode")) == len(bars("compute")) == 4


def test_names_are_text_and_no_markup():
    drawn = picture([Told("POST <x>&", "", 0.0, 1.0), *SPANS])

    ElementTree.fromstring(drawn)
    assert "<x>" not in drawn
