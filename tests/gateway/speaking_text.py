"""A text model whose answers have parts: the toy's bytes under a chat template's style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshnet.engine.speech import Speech, Style
from meshnet.simulation.toy_text import ToyText


class SpeakingText(ToyText):
    STYLE = Style("<tool_call> </think>", None)

    def __init__(self) -> None:
        super().__init__(context_length=4096)

    @property
    def calls_tools(self) -> bool:
        return self.STYLE.calls_tools

    def speech(  # type: ignore[override]
        self, prompt: Sequence[int], tools: Sequence[dict[str, Any]], *, thoughts: bool
    ) -> Speech | None:
        text = self.decode(prompt, skip_special=False)
        return self.STYLE.speech(text, tools, thoughts=thoughts)
