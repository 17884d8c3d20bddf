"""Fields that are refused by name unless they ask for nothing: never ignored, never half served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshnet.gateway.fields import Fields

Table = Mapping[str, tuple[tuple[Any, ...], str]]
"""By field: the values that ask for nothing, and why all others are refused."""

_LATER = "not supported yet"
_OFF = "not supported by this server"

REFUSED: Table = {
    "best_of": ((1,), f"must be 1, it is {_OFF}"),
    "use_beam_search": ((False,), _OFF),
    "length_penalty": ((1, 1.0), _OFF),
    "bad_words": (([],), _OFF),
    "structured_outputs": ((), _LATER),
    "guided_json": ((), _LATER),
    "guided_regex": ((), _LATER),
    "guided_choice": ((), _LATER),
    "guided_grammar": ((), _LATER),
    "grammar": (("",), _LATER),
    "stop_regex": ((), _OFF),
    "truncate_prompt_tokens": ((), f"{_OFF}: a prompt is never cut"),
    "prompt_logprobs": ((), _LATER),
    "include_stop_str_in_output": ((False,), _OFF),
    "skip_special_tokens": ((True,), _OFF),
    "return_token_ids": ((False,), _LATER),
}

REFUSED_IN_CHAT: Table = {
    "echo": ((False,), f"only in completions, here {_OFF}"),
    "functions": (([],), f"deprecated and {_OFF}"),
    "function_call": (("none", "auto"), f"deprecated and {_OFF}"),
    "audio": ((), f"audio is {_OFF}"),
    "modalities": ((["text"],), f"only text, other modalities are {_OFF}"),
    "chat_template": ((), f"{_OFF}: the model's own template is used"),
    "continue_final_message": ((False,), _LATER),
    "add_generation_prompt": ((True,), _LATER),
    "documents": (([],), _OFF),
}

REFUSED_IN_COMPLETIONS: Table = {
    "suffix": (("",), _OFF),
    "prompt_embeds": ((), _OFF),
}


def refuse(fields: Fields, *tables: Table) -> None:
    """Raise ApiError for the first field that asks for what is not served."""
    for table in tables:
        for name, (harmless, reason) in table.items():
            fields.refuse(name, harmless, reason)
