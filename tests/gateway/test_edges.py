"""Requests at the edge of what a client sends: probes, endless prompts, broken text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.tokenizers import saved
from tests.gateway.api import Gateway
from tests.models import byte_level_tokenizer

from meshnet.core.vocabulary import TextTooLong
from meshnet.engine.text import HFText
from meshnet.gateway.ports import Metrics, Readiness


@pytest.fixture
def text(tmp_path: Path) -> HFText:
    made = saved(byte_level_tokenizer(), tmp_path / "text")
    made.context_length = 4096
    return made


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/models/default"])
async def test_what_may_be_got_may_be_asked_for_its_head(path: str):
    """Load balancers probe with HEAD."""
    gateway = Gateway(metrics=Metrics("text/plain", lambda: b""))

    told = await gateway.send("HEAD", path)

    assert told.status_code == 200


async def test_a_probe_while_nodes_load_is_no_failure_of_the_gateway():
    told = await Gateway(ready=Readiness(False, "layers")).send("HEAD", "/ready")

    assert told.status_code == 503


@pytest.mark.parametrize("endpoint", ["chat", "complete"])
async def test_an_endless_prompt_is_refused_without_counting_all_of_it(endpoint: str, text: HFText):
    """A prompt of 30 MB took ten gigabytes to tokenise."""
    gateway = Gateway(text=text)
    words = "x y " * 2_000_000

    if endpoint == "chat":
        told = await gateway.chat(messages=[{"role": "user", "content": words}], max_tokens=1)
    else:
        told = await gateway.complete(prompt=words, max_tokens=1)

    error = told.json()["error"]
    assert (told.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith(
        "This model's maximum context length is 4096 tokens. However, you requested more than "
    )


def test_a_long_text_that_may_fit_is_tokenised_whole(text: HFText):
    """Few ids may stand for many characters: the text's length alone decides nothing."""
    words = "The quick brown fox. " * 5_000
    text.context_length = 60_000

    ids = text.encode(words, special=False)

    assert text.decode(ids, skip_special=False) == words


def test_counting_ends_where_the_answer_is_known(text: HFText):
    with pytest.raises(TextTooLong) as told:
        text.encode("x y " * 2_000_000, special=False)

    assert text.context_length < told.value.tokens_at_least < 100_000


async def test_a_template_argument_with_half_a_character_is_refused():
    body = (
        rb'{"model": "default", "messages": [{"role": "user", "content": "x"}],'
        rb' "chat_template_kwargs": {"reasoning_effort": "\ud800"}}'
    )

    told = await Gateway().send(
        "POST", "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )

    assert told.status_code == 400
    assert told.json()["error"]["param"] == "chat_template_kwargs.reasoning_effort"
