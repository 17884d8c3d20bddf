"""JSON objects from strangers, read field by field.

Bounded before it is parsed, duplicated keys and NaN/Infinity refused, unknown keys ignored,
null the same as absent. Whatever is wrong raises BadField and nothing else does.
"""

from __future__ import annotations

import json
import re
from typing import Any

from meshnet.core.protocol.limits import Limits
from meshnet.core.protocol.strict_json import strict_decoder
from meshnet.core.vocabulary import BadField, Buffer, LayerRange

NUMBER_MAX = 1e300
INTEGER_MAX = 2**64 - 1


def read_object(data: Buffer, where: str, limits: Limits) -> Fields:
    """Parse one JSON object of at most `limits.json_containers` arrays and objects."""
    text = bytes(data)
    containers = text.count(b"{") + text.count(b"[")
    if containers > limits.json_containers:
        raise BadField(where, f"at most {limits.json_containers} arrays and objects", containers)
    try:
        parsed = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadField(where, f"a JSON object ({error})", text[:60]) from None
    return Fields.of(parsed, where)


_DECODER = strict_decoder()


def print_object(values: dict[str, Any]) -> bytes:
    return _ENCODER.encode(values).encode()


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True)


class Fields:
    """The values of one JSON object; every getter checks what it returns."""

    __slots__ = ("_values", "_where")

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    @classmethod
    def of(cls, value: object, where: str) -> Fields:
        if not isinstance(value, dict):
            raise BadField(where, "a JSON object", value)
        return cls(value, where)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        return list(self._values)

    def refuse(self, name: str, expected: str) -> BadField:
        return BadField(f"{self._where}.{name}", expected, self._values.get(name))

    def integer(self, name: str, *, low: int = 0, high: int = INTEGER_MAX) -> int:
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.refuse(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        value: Any = self._values.get(name)
        if type(value) not in (int, float) or not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise self.refuse(name, "a finite number")
        return float(value)

    def truth(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def text(self, name: str, *, chars_max: int = 4096) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > chars_max or _SURROGATE.search(value):
            raise self.refuse(name, f"a string of at most {chars_max} characters")
        return value

    def integers(self, name: str, *, count_max: int, high: int) -> tuple[int, ...]:
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) > count_max:
            raise self.refuse(name, f"an array of at most {count_max} integers")
        if values and (set(map(type, values)) != {int} or min(values) < 0 or max(values) > high):
            raise self.refuse(name, f"integers from 0 to {high}")
        return tuple(values)

    def array(self, name: str, *, count_max: int) -> list[Any]:
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) > count_max:
            raise self.refuse(name, f"an array of at most {count_max} elements")
        return values

    def object(self, name: str) -> Fields:
        return Fields.of(self._values.get(name), f"{self._where}.{name}")

    def objects(self, name: str, *, count_max: int) -> list[Fields]:
        values = self.array(name, count_max=count_max)
        return [Fields.of(v, f"{self._where}.{name}[{at}]") for at, v in enumerate(values)]

    def layers(self, name: str) -> LayerRange:
        text = self.text(name, chars_max=32)
        try:
            return LayerRange.parse(text)
        except ValueError:
            raise self.refuse(name, "layers A-B, half-open") from None


_SURROGATE = re.compile("[\ud800-\udfff]")
