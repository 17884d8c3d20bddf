"""JSON objects from clients, read field by field; whatever is wrong is a 400 that names it.

Invariants
    * null is the same as absent, a bool is never a number, a float is never an integer;
    * a value never read is reported as ignored, so what is known is exactly what is read;
    * no text with unpaired surrogates passes: it could be neither tokenised nor answered;
    * a message never repeats a text of the client, only its kind.
"""

from __future__ import annotations

import json
import re
from typing import Any

from meshnet.core.protocol.strict_json import NotStrict, strict_decoder
from meshnet.gateway.errors import ApiError, invalid, unsupported

_PLACE = re.compile(r"\[[0-9]+\]")
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


def read_json_object(data: bytes) -> dict[str, Any]:
    """Parse a body: one object, no duplicated key, no NaN. Raises ApiError."""
    try:
        parsed = _DECODER.decode(data.decode("utf-8"))
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None
    except ValueError as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError | NotStrict) else "not UTF-8"
        raise ApiError(400, f"The body is not valid JSON: {reason}.", code="invalid_json") from None
    if not isinstance(parsed, dict):
        raise ApiError(
            400, f"The body must be a JSON object, got {kind(parsed)}.", code="invalid_type"
        )
    return parsed


def _integer(digits: str) -> int:
    if len(digits) > 400:
        raise NotStrict("a number has more than 400 digits")
    return int(digits)


_DECODER = strict_decoder(_integer)


def kind(value: object) -> str:
    """Name a value without telling its text: for messages."""
    match value:
        case None | bool() | int() | float():
            return json.dumps(value)[:40]
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def as_text(param: str, value: object) -> str:
    if not isinstance(value, str):
        raise invalid(param, f"expected a string, got {kind(value)}", code="invalid_type")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(param, "the text holds an unpaired surrogate") from None
    return value


def as_integer(param: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(param, f"expected an integer, got {kind(value)}", code="invalid_type")
    if not low <= value <= high:
        raise invalid(param, f"expected {low} to {high}, got {kind(value)}")
    return value


def as_number(param: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(param, f"expected a number, got {kind(value)}", code="invalid_type")
    if not low <= value <= high:
        raise invalid(param, f"expected {low:g} to {high:g}, got {kind(value)}")
    return float(value)


def as_boolean(param: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise invalid(param, f"expected true or false, got {kind(value)}", code="invalid_type")
    return value


def as_array(param: str, value: object, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(param, f"expected an array, got {kind(value)}", code="invalid_type")
    if len(value) > most:
        raise invalid(param, f"expected at most {most} items, got {len(value)}")
    return value


def as_object(param: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(param, f"expected an object, got {kind(value)}", code="invalid_type")
    return value


def as_json(param: str, value: object) -> dict[str, Any]:
    """An object that templates can write as JSON."""
    values = as_object(param, value)
    try:
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise invalid(
            param, "expected finite numbers, paired surrogates, and less nesting"
        ) from None
    return values


def as_token_id(param: str, value: object, vocab_size: int) -> int:
    return as_integer(param, value, 0, vocab_size - 1)


def token_id_of_key(param: str, key: str, vocab_size: int) -> int:
    """A token id that is the key of an object, and so a string."""
    if _DIGITS.fullmatch(key) is None or int(key) >= vocab_size:
        raise invalid(param, f"expected token ids from 0 to {vocab_size - 1} as keys")
    return int(key)


class Fields:
    """The fields of one object, and of those inside it; what nobody read is `ignored`."""

    def __init__(self, values: dict[str, Any], *, prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()
        self._refusable: set[str] = set()
        self._inside: list[Fields] = []

    def param(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def inside(self, param: str, value: object) -> Fields:
        """Return the fields of an object that is somewhere in this one."""
        fields = Fields(as_object(param, value), prefix=f"{param}.")
        self._inside.append(fields)
        return fields

    def take(self, name: str) -> Any:
        """The value or None. It counts as known from now on."""
        self._read.add(name)
        return self._values.get(name)

    def require(self, name: str) -> Any:
        value = self.take(name)
        if value is None:
            raise invalid(
                self.param(name), "this field is required", code="missing_required_parameter"
            )
        return value

    def text(self, name: str) -> str | None:
        value = self.take(name)
        return None if value is None else as_text(self.param(name), value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        return None if value is None else as_integer(self.param(name), value, low, high)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.take(name)
        return None if value is None else as_number(self.param(name), value, low, high)

    def boolean(self, name: str) -> bool:
        """False where absent."""
        value = self.take(name)
        return False if value is None else as_boolean(self.param(name), value)

    def refuse(self, name: str, harmless: tuple[Any, ...], reason: str) -> None:
        """Accept only values that ask for nothing; anything else would be ignored silently."""
        self._refusable.add(name)
        value = self.take(name)
        if value is not None and not any(_same(value, allowed) for allowed in harmless):
            raise unsupported(self.param(name), reason)

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self._read)

    @property
    def refusable(self) -> frozenset[str]:
        return frozenset(self._refusable)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Each once, with the way to it, whichever of a list it is in. Null is absent."""
        way = _PLACE.sub("", self._prefix)
        own = [
            way + name
            for name, value in self._values.items()
            if name not in self._read and value is not None
        ]
        inner = (name for fields in self._inside for name in fields.ignored)
        return tuple(dict.fromkeys([*own, *inner]))


def _same(value: object, allowed: object) -> bool:
    return type(value) is type(allowed) and value == allowed
