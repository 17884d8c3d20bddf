"""What a node measured of itself, as the `capacity` of `GET /node`, and back.

Absent: the node did not measure, and nothing may be concluded. A speed in a format of a later
version is passed over, since it is of no use to who does not know the format; anything else that
is present and wrong is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshnet.core.protocol.fields import Fields
from meshnet.core.vocabulary import Capacity, Link, NodeId, Reading, Speed, WeightFormat

SPEEDS_MAX = 8
READINGS_MAX = 16
LINKS_MAX = 64
"""A node that knows more nodes tells the ways to so many of them."""
MACHINE_CHARS_MAX = 128
_FORMATS = {each.value: each for each in WeightFormat}
_Value = TypeVar("_Value")


def capacity_values(capacity: Capacity) -> dict[str, Any]:
    """Return what stands in the JSON of a node."""
    return {
        "machine": capacity.machine,
        "memory_bytes": capacity.memory_bytes,
        "threads": capacity.threads,
        "cores": capacity.cores,
        "speeds": [_speed_values(speed) for speed in capacity.speeds],
        "links": [link_values(link) for link in capacity.links[:LINKS_MAX]],
    }


def _speed_values(speed: Speed) -> dict[str, Any]:
    return {
        "weights": speed.weights.value,
        "reading": [
            {"held_bytes": each.held_bytes, "bytes_per_s": each.bytes_per_s}
            for each in speed.reading
        ],
        "multiplies_per_s": speed.multiplies_per_s,
        "attention_bytes_per_s": speed.attention_bytes_per_s,
        "together_attention_bytes_per_s": speed.together_attention_bytes_per_s,
        "layer_s": speed.layer_s,
        "step_s": speed.step_s,
    }


def link_values(link: Link) -> dict[str, Any]:
    return {
        "node": link.node,
        "round_trip_s": link.round_trip_s,
        "bytes_per_s": link.bytes_per_s,
    }


def read_capacity(owner: Fields, name: str = "capacity") -> Capacity:
    """Read the field `name` of `owner`. Raises BadField."""
    fields = owner.object(name)
    speeds = [
        _speed(each)
        for each in fields.objects("speeds", count_max=SPEEDS_MAX)
        if each.text("weights") in _FORMATS
    ]
    return _valid(
        owner,
        name,
        lambda: Capacity(
            machine=fields.text("machine", chars_max=MACHINE_CHARS_MAX),
            memory_bytes=fields.integer("memory_bytes"),
            threads=fields.integer("threads"),
            cores=fields.integer("cores"),
            speeds=tuple(speeds),
            links=read_links(fields, count_max=LINKS_MAX),
        ),
    )


def read_links(owner: Fields, *, count_max: int) -> tuple[Link, ...]:
    """Read the field `links` of `owner`. Raises BadField."""
    return tuple(_link(each) for each in owner.objects("links", count_max=count_max))


def _speed(fields: Fields) -> Speed:
    reading = [_reading(each) for each in fields.objects("reading", count_max=READINGS_MAX)]
    return _valid(
        fields,
        "reading",
        lambda: Speed(
            weights=_FORMATS[fields.text("weights")],
            reading=tuple(reading),
            multiplies_per_s=fields.number("multiplies_per_s"),
            attention_bytes_per_s=fields.number("attention_bytes_per_s"),
            together_attention_bytes_per_s=fields.number("together_attention_bytes_per_s"),
            layer_s=fields.number("layer_s"),
            step_s=fields.number("step_s"),
        ),
    )


def _reading(fields: Fields) -> Reading:
    return _valid(
        fields,
        "bytes_per_s",
        lambda: Reading(fields.integer("held_bytes"), fields.number("bytes_per_s")),
    )


def _link(fields: Fields) -> Link:
    return _valid(
        fields,
        "node",
        lambda: Link(
            NodeId(fields.text("node", chars_max=512)),
            fields.number("round_trip_s"),
            fields.number("bytes_per_s"),
        ),
    )


def _valid(fields: Fields, name: str, made: Callable[[], _Value]) -> _Value:
    """Return the value, or refuse the field for what the value itself says is wrong with it."""
    try:
        return made()
    except ValueError as error:
        raise fields.refuse(name, f"valid values ({error})") from None
