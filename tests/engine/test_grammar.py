"""Answers kept to a grammar: whatever the logits, guesses and losses, they are of its language."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.tokenizers import saved
from tests.models import byte_level_tokenizer

from meshnet.core.protocol.drafts import verified
from meshnet.core.vocabulary import (
    BadField,
    GrammarError,
    NumericalError,
    SampledToken,
    SamplingParams,
)
from meshnet.engine.grammar import Grammars, check_grammar
from meshnet.engine.history import History
from meshnet.engine.sampling import Sampler
from meshnet.engine.text import HFText

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> HFText:
    path = tmp_path_factory.mktemp("text")
    return saved(byte_level_tokenizer(), path, max_position_embeddings=512)


@pytest.fixture(scope="module")
def grammars(text: HFText) -> Grammars:
    return Grammars(text.vocabulary)


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def small_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema whose values are short, and its check is in `fits`."""
    kinds = ["enum", "boolean", "integer", "string", "null"] + ["object", "array"] * (depth > 0)
    match rng.choice(kinds):
        case "enum":
            return {"enum": rng.sample(["é", "b", 3, None, True], rng.randint(1, 3))}
        case "integer":
            low = rng.randint(-20, 20)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 99)}
        case "string":
            return {"type": "string", "maxLength": rng.randint(0, 6)}
        case "object":
            names = rng.sample("abcd", rng.randint(0, 3))
            return closed(**{name: small_schema(rng, depth - 1) for name in names})
        case "array":
            items = small_schema(rng, depth - 1)
            return {"type": "array", "items": items, "maxItems": rng.randint(0, 3)}
        case kind:
            return {"type": kind}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    match schema["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) and not isinstance(value, bool)
            return whole and schema["minimum"] <= value <= schema["maximum"]
        case "string":
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case "object":
            same = isinstance(value, dict) and set(value) == set(schema["properties"])
            return same and all(fits(value[at], of) for at, of in schema["properties"].items())
        case "array":
            short = isinstance(value, list) and len(value) <= schema["maxItems"]
            return short and all(fits(each, schema["items"]) for each in value)
    return value is None


def logits_of(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * 3


def answer(
    text: HFText, grammars: Grammars, grammar: str, seed: int, *, guesses: int = 0
) -> list[int]:
    """Ids drawn up to a stop id, from logits that depend on the position; some by guesses."""
    sampling = SamplingParams(
        temperature=1.0, seed=seed, grammar=grammar, prompt_length=len(PROMPT)
    )
    sampler, history, rng = Sampler(grammars), History(PROMPT), random.Random(seed)

    def draw() -> SampledToken:
        position = len(history)
        logits = logits_of(position + 1000 * seed, text.vocab_size)
        return sampler.draw(logits, history, sampling, position)

    ids: list[int] = []
    while not ids or ids[-1] not in text.stop_ids:
        wrong = [rng.randrange(text.vocab_size) for _ in range(guesses)]
        known = len(history)

        def next_draw(count: int, wrong: list[int] = wrong) -> SampledToken:
            history.extend(wrong[count - 1 : count])
            return draw()

        drawn = verified(wrong, next_draw)
        history.extend(wrong[len(drawn.tokens) - 1 :])
        if rng.random() < 0.5:
            draw()  # behind wrong guesses, as a window that is already on its way
        history.truncate(known)
        history.extend(drawn.ids)
        ids += drawn.ids
        assert len(ids) < 400
    return ids


@pytest.mark.parametrize("seed", range(25))
def test_a_complete_answer_is_valid_under_its_schema(text: HFText, grammars: Grammars, seed: int):
    """Pit A54."""
    schema = small_schema(random.Random(seed))

    ids = answer(text, grammars, text.grammar_of(schema), seed)

    said = text.decode(ids[:-1], skip_special=False)
    assert fits(json.loads(said), schema), (schema, said)


@pytest.mark.parametrize("seed", range(5))
def test_guesses_change_no_id(text: HFText, grammars: Grammars, seed: int):
    grammar = text.grammar_of(closed(a={"type": "string", "maxLength": 9}, b={"type": "boolean"}))

    plain = answer(text, grammars, grammar, seed)

    assert answer(text, grammars, grammar, seed, guesses=3) == plain


def test_a_state_built_anew_from_the_ids_draws_what_the_old_one_would(
    text: HFText, grammars: Grammars
):
    """A refill, another tail or a stateless step has nothing but the ids."""
    grammar = text.grammar_of(closed(a={"type": "integer", "minimum": 0, "maximum": 10**6}))
    ids = PROMPT + answer(text, grammars, grammar, 3)
    sampling = SamplingParams(temperature=1.0, seed=3, grammar=grammar, prompt_length=len(PROMPT))

    for position in range(len(PROMPT), len(ids)):
        logits = logits_of(position + 3000, text.vocab_size)
        drawn = Sampler(Grammars(text.vocabulary)).draw(logits, ids[:position], sampling, position)
        assert drawn.token_id == ids[position]


def test_the_next_turn_begins_its_grammar_anew(text: HFText, grammars: Grammars):
    grammar = text.grammar_of({"enum": ["one"]})
    first = answer(text, grammars, grammar, 0)
    history = History([*PROMPT, *first])
    length = len(history)
    sampling = SamplingParams(grammar=grammar, prompt_length=length)

    again = Sampler(grammars).draw(logits_of(0, text.vocab_size), history, sampling, length)

    assert text.token_bytes(again.token_id).startswith(b'"')


def test_an_answer_under_way_keeps_the_grammar_it_was_begun_with(text: HFText, grammars: Grammars):
    """So that no step of it compiles anything, whatever others ask for meanwhile."""
    history, logits = History(PROMPT), logits_of(0, text.vocab_size)
    sampling = SamplingParams(grammar=text.grammar_of({"enum": ["one"]}), prompt_length=len(PROMPT))
    assert not history.follows(sampling)

    Sampler(grammars).draw(logits, history, sampling, len(PROMPT))

    assert history.follows(sampling)
    assert not history.follows(replace(sampling, prompt_length=len(PROMPT) + 1))
    assert not history.follows(replace(sampling, grammar=text.grammar_of({"enum": ["two"]})))


def test_log_probabilities_stay_those_of_the_model(text: HFText, grammars: Grammars):
    grammar = text.grammar_of({"type": "object"})
    logits = logits_of(1, text.vocab_size)
    sampling = SamplingParams(grammar=grammar, logprobs=1, prompt_length=len(PROMPT))

    drawn = Sampler(grammars).draw(logits, PROMPT, sampling, len(PROMPT))

    assert drawn.logprob == pytest.approx(float(logits.log_softmax(-1)[drawn.token_id]), abs=1e-5)
    assert drawn.top[0].token_id == int(logits.argmax())


def test_where_everything_is_forbidden_that_is_an_error(text: HFText, grammars: Grammars):
    grammar = text.grammar_of({"enum": ["x"]})
    opening = text.encode('"', special=False)[0]
    bias = tuple((token, -100.0) for token in range(text.vocab_size) if token != 9)[:1024]
    sampling = SamplingParams(grammar=grammar, logit_bias=bias, prompt_length=len(PROMPT))

    assert opening in dict(bias)
    with pytest.raises(NumericalError):
        Sampler(grammars).draw(logits_of(1, text.vocab_size), PROMPT, sampling, len(PROMPT))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = closed(a=schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"foo": "bar"}},
        {"type": "notatype"},
        {"$ref": "#/nowhere"},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"enum": ["x" * 2**16]},
        nested(500),
        nested(5000),
    ],
    ids=["keyword", "type", "pointer", "unknown", "large", "deep", "deeper"],
)
def test_a_schema_that_cannot_be_kept_is_refused(text: HFText, schema: dict[str, Any]):
    """Pit A52: and the next one is compiled as ever."""
    with pytest.raises(GrammarError):
        text.grammar_of(schema)

    assert text.grammar_of({"type": "object"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "maxLength": 1_000_000},
        {"type": "array", "minItems": 100_000},
    ],
)
def test_heavy_schemas_are_compiled_lazily_or_refused(
    text: HFText, grammars: Grammars, schema: dict[str, Any]
):
    """Pit A53: limits are in steps, not in time, so this ends."""
    try:
        grammar = text.grammar_of(schema)
    except GrammarError:
        return
    sampling = SamplingParams(grammar=grammar, prompt_length=len(PROMPT))
    assert Sampler(grammars).draw(logits_of(0, text.vocab_size), PROMPT, sampling, len(PROMPT))


def test_a_tail_refuses_before_a_step_what_it_cannot_keep(grammars: Grammars):
    with pytest.raises(BadField, match="grammar"):
        check_grammar("no grammar at all", grammars)
    with pytest.raises(BadField, match="knows no grammars"):
        check_grammar('{"grammars": []}', None)
