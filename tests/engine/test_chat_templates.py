"""Chat templates: what they are given, what they may do, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.engine.tokenizers import saved
from tests.models import byte_level_tokenizer

from meshnet.core.vocabulary import ModelId, NoTemplate, TemplateError, ToolCall
from meshnet.engine.text import HFText

USER = [{"role": "user", "content": "hi"}]


def with_template(template: str, path: Path) -> HFText:
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return saved(tokenizer, path)


def test_a_templated_prompt_begins_with_exactly_one_bos(tiny: HFText) -> None:
    """Pit A19."""
    bos = tiny.encode("", special=True)

    ids = tiny.render_chat(USER, {})

    assert ids[:1] == bos
    assert ids.count(bos[0]) == 1
    assert tiny.decode(ids, skip_special=False).endswith("<|im_start|>assistant\n")


def test_a_developer_is_the_system(tiny: HFText) -> None:
    """Pit A22."""
    developer = tiny.render_chat([{"role": "developer", "content": "be brief"}, *USER], {})

    assert developer == tiny.render_chat([{"role": "system", "content": "be brief"}, *USER], {})


def test_text_parts_are_one_text(tiny: HFText) -> None:
    """Pit A23."""
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]

    assert tiny.render_chat([{"role": "user", "content": parts}], {}) == tiny.render_chat(USER, {})


def test_a_part_that_is_not_text_is_named(tiny: HFText) -> None:
    with pytest.raises(TemplateError, match="image_url"):
        tiny.render_chat([{"role": "user", "content": [{"type": "image_url"}]}], {})


def test_the_messages_given_are_left_alone(tiny: HFText) -> None:
    messages = [{"role": "developer", "content": None}]

    tiny.render_chat(messages, {})

    assert messages == [{"role": "developer", "content": None}]


def test_a_model_without_template_says_so() -> None:
    """Pit A24."""
    bare = byte_level_tokenizer()
    bare.chat_template = None
    with pytest.raises(NoTemplate, match="no chat template"):
        HFText(
            bare,
            model=ModelId("bare"),
            context_length=8,
            vocab_size=512,
            stop_ids=frozenset(),
            generation_defaults=None,
        ).render_chat(USER, {})


def test_a_templates_own_refusal_reaches_the_caller(tmp_path: Path) -> None:
    """Pit A21."""
    text = with_template("{{ raise_exception('roles must alternate') }}", tmp_path)

    with pytest.raises(TemplateError, match="roles must alternate"):
        text.render_chat(USER, {})


@pytest.mark.parametrize(
    "template",
    [
        "{{ self.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0]['absent'] + 1 }}",
        "{{ 1 / 0 }}",
        "{% for a in messages %}{{ a.content.x.y }}{% endfor %}",
        "{% if %}",
    ],
)
def test_a_template_that_misbehaves_is_an_error_of_the_template(
    template: str, tmp_path: Path
) -> None:
    """Pit A97: the sandbox refuses; a broken template is no crash either."""
    text = with_template(template, tmp_path)

    with pytest.raises(TemplateError):
        text.render_chat(USER, {})


def test_an_endless_template_is_stopped(tmp_path: Path) -> None:
    """Pit A97."""
    many = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    text = with_template(many, tmp_path)

    with pytest.raises(TemplateError, match="steps"):
        text.render_chat(USER, {})


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "add_generation_prompt"])
def test_a_request_cannot_replace_the_template_or_how_it_is_applied(
    tiny: HFText, name: str
) -> None:
    """Pit A97."""
    with pytest.raises(TemplateError, match=name):
        tiny.render_chat(USER, {name: "{{ 1 }}"})


def test_template_arguments_reach_the_template(tmp_path: Path) -> None:
    text = with_template("{{ 'thinking' if enable_thinking else 'plain' }}", tmp_path)

    ids = text.render_chat(USER, {"enable_thinking": True})

    assert text.decode(ids, skip_special=False) == "thinking"


def test_a_tokenizer_class_that_transformers_must_choose_reads_the_same(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_model_dir, copy, ignore=shutil.ignore_patterns("*.safetensors*"))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    del settings["tokenizer_class"]
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    plain = HFText.load(tiny_model_dir, ModelId("m"))

    chosen = HFText.load(copy, ModelId("m"))

    assert chosen.render_chat(USER, {}) == plain.render_chat(USER, {})


def test_tools_reach_a_template_and_their_calls_are_read_by_its_style(tmp_path: Path) -> None:
    template = "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}<tool_call>"
    text = with_template(template, tmp_path)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    prompt = text.render_chat(USER, {}, tools)
    speech = text.speech(prompt, tools, thoughts=True)

    assert text.decode(prompt, skip_special=False) == "look;<tool_call>"
    assert text.render_chat(USER, {}) == text.encode("<tool_call>", special=False)
    assert text.calls_tools
    assert speech is not None
    said = speech.feed('<tool_call>{"name": "look"}</tool_call>')
    assert said == [ToolCall("look", "{}")]
