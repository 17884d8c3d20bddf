"""The words every other module speaks: ids, layer ranges, activations, steps, descriptions.

Values only, and the errors; everybody imports them from here. Each value is valid once constructed;
sizes are bytes, lengths are tokens, layer ranges are half-open. Shapes are named in the glossary
(docs/glossary.md).
"""

from meshnet.core.errors import (
    BadField,
    GrammarError,
    HopLost,
    KVCacheMiss,
    MeshnetError,
    MissReason,
    ModelError,
    NoRoom,
    NoTemplate,
    NumericalError,
    StaleAttempt,
    StepTorn,
    TemplateError,
    TextTooLong,
    TooLarge,
    WrongShard,
)
from meshnet.core.vocabulary.activations import HIDDEN, Activation, Buffer, DType, TensorSpec
from meshnet.core.vocabulary.capacity import Capacity, Link, Reading, Speed
from meshnet.core.vocabulary.descriptions import (
    Capabilities,
    KVBytes,
    NodeDescription,
    SessionDescription,
    ShardDescription,
)
from meshnet.core.vocabulary.drawing import (
    DRAFTS_MAX,
    GRAMMAR_CHARS_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    POSITIONS_MAX,
    TOKEN_ID_MAX,
    Drawn,
    SampledToken,
    SamplingParams,
    TokenLogprob,
)
from meshnet.core.vocabulary.formats import WeightFormat
from meshnet.core.vocabulary.identity import WIRE_VERSION, ModelId, NodeId, SessionId
from meshnet.core.vocabulary.layer_states import LayerState
from meshnet.core.vocabulary.layers import LayerRange, check_cover
from meshnet.core.vocabulary.members import (
    MEMBERS_MAX,
    Assignment,
    Assignments,
    Member,
    MemberState,
)
from meshnet.core.vocabulary.routes import Hop, Route, segments_of
from meshnet.core.vocabulary.speech import Said, Spoken, Thought, ToolCall
from meshnet.core.vocabulary.steps import ShardStep
from meshnet.core.vocabulary.tracing import TraceContext

__all__ = [
    "DRAFTS_MAX",
    "GRAMMAR_CHARS_MAX",
    "HIDDEN",
    "LOGIT_BIAS_MAX",
    "LOGPROBS_MAX",
    "MEMBERS_MAX",
    "POSITIONS_MAX",
    "TOKEN_ID_MAX",
    "WIRE_VERSION",
    "Activation",
    "Assignment",
    "Assignments",
    "BadField",
    "Buffer",
    "Capabilities",
    "Capacity",
    "DType",
    "Drawn",
    "GrammarError",
    "Hop",
    "HopLost",
    "KVBytes",
    "KVCacheMiss",
    "LayerRange",
    "LayerState",
    "Link",
    "Member",
    "MemberState",
    "MeshnetError",
    "MissReason",
    "ModelError",
    "ModelId",
    "NoRoom",
    "NoTemplate",
    "NodeDescription",
    "NodeId",
    "NumericalError",
    "Reading",
    "Route",
    "Said",
    "SampledToken",
    "SamplingParams",
    "SessionDescription",
    "SessionId",
    "ShardDescription",
    "ShardStep",
    "Speed",
    "Spoken",
    "StaleAttempt",
    "StepTorn",
    "TemplateError",
    "TensorSpec",
    "TextTooLong",
    "Thought",
    "TokenLogprob",
    "TooLarge",
    "ToolCall",
    "TraceContext",
    "WeightFormat",
    "WrongShard",
    "check_cover",
    "segments_of",
]
