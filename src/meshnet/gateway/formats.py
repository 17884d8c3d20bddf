"""`response_format`: the JSON schema that an answer is kept to.

text          nothing
json_object   any object
json_schema   what `json_schema.schema` describes
"""

from __future__ import annotations

from typing import Any

from meshnet.gateway.errors import invalid
from meshnet.gateway.fields import Fields, as_boolean, as_json, as_text

_TYPES = ("text", "json_object", "json_schema")


def read_schema(fields: Fields) -> dict[str, Any] | None:
    """The schema that is asked for; None: any text will do. Raises ApiError."""
    value = fields.take("response_format")
    if value is None:
        return None
    wanted = fields.inside("response_format", value)
    kind = wanted.require("type")
    if kind not in _TYPES:
        raise invalid("response_format.type", f"expected one of {', '.join(_TYPES)}")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    param = wanted.param("json_schema")
    described = wanted.inside(param, wanted.require("json_schema"))
    as_text(described.param("name"), described.require("name"))
    if (strict := described.take("strict")) is not None:
        as_boolean(described.param("strict"), strict)
    return as_json(described.param("schema"), described.require("schema"))
