"""Members and assignments as JSON, and back.

Unknown keys are ignored and additive keys may be absent, so processes of unlike versions read each
other; what is present is checked. A node of a later wire version is refused here, by name: it
would else be found out in the middle of a step.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from meshnet.core.protocol.capacities import capacity_values, read_capacity
from meshnet.core.protocol.fields import Fields, print_object, read_object
from meshnet.core.protocol.limits import Limits
from meshnet.core.vocabulary import (
    MEMBERS_MAX,
    WIRE_VERSION,
    Assignments,
    BadField,
    Buffer,
    LayerRange,
    Member,
    MemberState,
    ModelId,
    NodeId,
)

NODE_CHARS_MAX = 256
TEXT_CHARS_MAX = 1024
EPOCH_MAX = 2**53 - 1


def node_url(text: str, field: str = "node") -> NodeId:
    """Return the id of the node that others reach at `text`. Raises BadField."""
    try:
        parts = urlsplit(text)
        valid = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and bool(parts.port)
            and text == f"{parts.scheme}://{parts.netloc}"
            and "@" not in parts.netloc
            and re.fullmatch(r"[\x21-\x7e]+", text) is not None
        )
    except ValueError:
        valid = False
    if not valid or len(text) > NODE_CHARS_MAX:
        raise BadField(field, "a URL such as http://10.0.0.1:9001", text)
    return NodeId(text)


def member_values(member: Member) -> dict[str, Any]:
    """Return the JSON of a member."""
    values: dict[str, Any] = {
        "node": member.node,
        "wire": member.wire,
        "state": member.state.value,
        "capacity": capacity_values(replace(member.capacity, links=())),
        "description": member.description,
        "assigned": member.assigned,
        "epoch": member.epoch,
        "failure": member.failure,
    }
    if member.model is not None:
        values |= {"model": member.model, "layers": str(member.layers)}
    return values


def read_member(fields: Fields) -> Member:
    """Read what `member_values` wrote. Raises BadField."""
    state = fields.text("state", chars_max=32)
    if state not in {each.value for each in MemberState}:
        raise fields.refuse("state", ", ".join(each.value for each in MemberState))
    wire = fields.integer("wire", high=2**31)
    if wire > WIRE_VERSION:
        raise fields.refuse("wire", f"at most {WIRE_VERSION}, the version of this mesh")
    model, layers = _held(fields)
    return Member(
        node=node_url(fields.text("node", chars_max=NODE_CHARS_MAX), "member.node"),
        wire=wire,
        state=MemberState(state),
        capacity=read_capacity(fields),
        description=_text(fields, "description"),
        model=model,
        layers=layers,
        assigned=fields.truth("assigned") if fields.has("assigned") else False,
        epoch=fields.integer("epoch", high=EPOCH_MAX) if fields.has("epoch") else 0,
        failure=_text(fields, "failure"),
    )


def _held(fields: Fields) -> tuple[ModelId, LayerRange] | tuple[None, None]:
    if not fields.has("model"):
        return None, None
    return ModelId(fields.text("model", chars_max=TEXT_CHARS_MAX)), fields.layers("layers")


def _text(fields: Fields, name: str) -> str:
    return fields.text(name, chars_max=TEXT_CHARS_MAX) if fields.has(name) else ""


def encode_assignments(assignments: Assignments) -> bytes:
    """Return assignments as the registry keeps them."""
    nodes = [
        {"node": node, "layers": str(layers), "epoch": epoch}
        for node, (layers, epoch) in assignments.held.items()
    ]
    return print_object(
        {
            "model": assignments.model,
            "source": assignments.source,
            "weights": assignments.weights,
            "epoch": assignments.epoch,
            "nodes": nodes,
        }
    )


def decode_assignments(data: Buffer) -> Assignments:
    """Read what `encode_assignments` wrote. Raises BadField."""
    fields = read_object(data, "assignments", _ASSIGNMENTS_LIMITS)
    held = {
        node_url(entry.text("node", chars_max=NODE_CHARS_MAX), "assignments.node"): (
            entry.layers("layers"),
            entry.integer("epoch", low=1, high=EPOCH_MAX),
        )
        for entry in fields.objects("nodes", count_max=MEMBERS_MAX)
    }
    return Assignments(
        model=ModelId(fields.text("model", chars_max=TEXT_CHARS_MAX)),
        source=fields.text("source", chars_max=TEXT_CHARS_MAX),
        weights=fields.text("weights", chars_max=32),
        epoch=fields.integer("epoch", high=EPOCH_MAX),
        held=held,
    )


_ASSIGNMENTS_LIMITS = Limits(json_containers=2 * MEMBERS_MAX)
