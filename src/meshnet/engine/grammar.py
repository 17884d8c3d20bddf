"""What a grammar allows next, for one model's vocabulary; llguidance does the work.

    JSON schema --grammar_of--> grammar (a text, travels with the sampling parameters)
    grammar --follow--> Following: catches up with the ids of an answer, forbids what may not follow

Invariants
    * what is allowed is a function of the grammar and the ids of the answer alone: a matcher is
      caught up, rolled back or built anew, whatever a refill or a wrong guess asks for;
    * compiling and each mask are bounded by llguidance's own limits, never by a clock;
    * the model's stop ids are allowed exactly where the grammar is complete.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshnet.core.vocabulary import GRAMMAR_CHARS_MAX, BadField, GrammarError, ModelError

_KEPT = 32
"""Compiled grammars kept, of those asked for last."""
_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One form for all JSON, that of templates: where space is free, small models write it for ever."""


def grammar_of(schema: dict[str, Any]) -> str:
    """Return the grammar of a JSON schema, unchecked. Raises GrammarError."""
    from llguidance import LLMatcher

    try:
        grammar: str = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_FORM)
    except (ValueError, RecursionError) as error:
        raise GrammarError(str(error)) from None
    return _bounded(grammar)


def grammar_of_call(
    tools: Sequence[dict[str, Any]], *, before: str, after: str, arguments: str
) -> str:
    """Return the grammar of one call of one of `tools`, between two texts. Raises GrammarError.

    Each schema stays a document of its own: a reference in it points into it.
    """
    starts, schemas = [], []
    for at, tool in enumerate(tools):
        function = tool["function"]
        begun = f'{before}{{"name": {json.dumps(function["name"])}, "{arguments}": '
        starts.append(f"{json.dumps(begun)} arguments_{at} {json.dumps('}' + after)}")
        schema = {"type": "object"} | function["parameters"] | {"x-guidance": _FORM}
        try:
            schemas.append(f"arguments_{at}: %json {json.dumps(schema)}\n")
        except RecursionError:
            raise GrammarError("a schema is nested too deeply") from None
    return _bounded(f"start: {' | '.join(starts)}\n{''.join(schemas)}")


def _bounded(grammar: str) -> str:
    if len(grammar) > GRAMMAR_CHARS_MAX:
        raise GrammarError(f"expected at most {GRAMMAR_CHARS_MAX} characters, got {len(grammar)}")
    return grammar


Vocabulary = tuple[str, int, frozenset[int]]
"""A tokenizer in the form of tokenizer.json, the number of logits, the ids that end an answer."""


class Grammars:
    """Grammars over one vocabulary, compiled once. Safe to call from threads.

    `vocabulary` is asked when the first grammar comes.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def follow(self, grammar: str) -> Following:
        """Return the grammar at its beginning. Raises GrammarError."""
        with self._lock:
            matcher = self._compiled.get(grammar) or self._matcher(grammar)
            self._compiled[grammar] = matcher
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            return Following(grammar, matcher.deep_copy(), frozenset(self._tokenizer.eos_tokens))

    def _matcher(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLTokenizer

        if self._tokenizer is None:
            try:
                text, count, stop_ids = self._vocabulary()
                self._tokenizer = LLTokenizer(text, n_vocab=count, eos_token=sorted(stop_ids))
            except (ModelError, ValueError, RuntimeError) as error:
                raise GrammarError(f"this tokenizer has no grammars: {error}") from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().partition("\n")[0][:500])
        return matcher


def check_grammar(grammar: str, grammars: Grammars | None) -> None:
    """Raise BadField if a tail cannot keep an answer to it; call it before a step."""
    if grammars is None:
        raise BadField("grammar", "none: this shard knows no grammars", grammar)
    try:
        grammars.follow(grammar)
    except GrammarError as error:
        raise BadField("grammar", f"one that can be kept ({error})", grammar) from None


class Following:
    """Where an answer is in its grammar."""

    def __init__(self, grammar: str, matcher: Any, stop_ids: frozenset[int]) -> None:
        self.grammar = grammar
        self._matcher, self._stop_ids = matcher, stop_ids
        self._taken = 0
        self._over = False
        """The id after those that were taken ends the answer, or is not allowed."""

    def take(self, token_id: int) -> bool:
        """Go on by one id; False: the grammar does not allow it."""
        if self._over:
            return False
        if token_id in self._stop_ids:  # llguidance takes none where nothing else may follow
            self._over = True
            return bool(self._matcher.is_accepting())
        self._over = self._matcher.try_consume_tokens([token_id]) != 1
        self._taken += not self._over
        return not self._over

    def catch_up(self, ids: Sequence[int], start: int) -> None:
        """Take the ids of the answer, `ids[start:]`, that were not taken yet."""
        for at in range(start + self._taken, len(ids)):
            if not self.take(ids[at]):
                return

    def cut(self, length: int) -> None:
        """Forget the ids from the answer's `length`-th on."""
        kept = max(length, 0)
        if kept < self._taken:
            self._matcher.rollback(self._taken - kept)
            self._taken = kept
        self._over = self._over and kept > self._taken

    def forbid(self, scores: np.ndarray[Any, Any]) -> None:
        """Set to -inf what may not follow. Raises GrammarError.

        Behind an id that ends the answer, or is not allowed, nothing is forbidden: it was a guess,
        and what is drawn behind a wrong one is dropped.
        """
        if self._over:
            return
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():  # one of llguidance's own limits
            raise GrammarError(self._matcher.get_error().partition("\n")[0][:500])
        allowed = np.unpackbits(packed, count=len(scores), bitorder="little")
        scores[allowed == 0] = -np.inf
