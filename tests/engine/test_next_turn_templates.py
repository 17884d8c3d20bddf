"""A chat whose template drops what an answer thought, on layers that cannot be shortened."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.test_next_turn import asked, split
from tests.engine.tokenizers import saved
from tests.families import save_family
from tests.models import byte_level_tokenizer
from tests.torch_mesh import mesh_of

from meshnet.core.generation.limits import GenerationLimits
from meshnet.core.vocabulary import WeightFormat
from meshnet.engine.text import HFText
from meshnet.head.lingering import shared

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</t>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<t>{% endif %}"
)
"""Opens the thinking itself, and shows of an answer what came after it."""
ASKED = {"role": "user", "content": "Tell me of the river, of hills, of roads. " * 4}
MORE = {"role": "user", "content": "And of the sea?"}


def text_of(path: Path) -> HFText:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return saved(tokenizer, path)


@pytest.mark.parametrize("name", ["lfm2", "qwen3_next", "bamba"])
async def test_a_turn_goes_on_from_the_prompt_of_the_last_and_reads_like_a_cold_one(
    tmp_path: Path, name: str
):
    text = text_of(tmp_path / "text")
    model = save_family(tmp_path / "model", name, vocab_size=512, max_position_embeddings=512)
    first = tuple(text.render_chat([ASKED], {}))
    async with mesh_of(split(model, WeightFormat.INT8)) as (head, _):
        thought, _ = await asked(head, first)
        answer = text.decode(thought, skip_special=True) + "</t>It is wide."
        turns = [ASKED, {"role": "assistant", "content": answer}, MORE]
        second = tuple(text.render_chat(turns, {}))
        warm, finish = await asked(head, second)
        cold, alone = await asked(head, second, owner="you")

    assert shared(first, second) < len(first), "the template drops what opened the thinking"
    assert warm == cold
    assert text.decode(warm, skip_special=False) == text.decode(cold, skip_special=False)
    assert (finish.cached_tokens, alone.cached_tokens) == (
        len(first) - GenerationLimits().opening,
        0,
    )
