"""Text from ids and ids from text, with tokenizers of both families; stop ids and defaults."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.tokenizers import saved, sentencepiece_tokenizer
from tests.models import CORPUS, EOS, TURN_END, byte_level_tokenizer
from tokenizers import Tokenizer

from meshnet.core.vocabulary import ModelError, ModelId
from meshnet.engine.decoding import Pieces, WindowDecoder
from meshnet.engine.text import GenerationDefaults, HFText

MULTIBYTE = ["😀", "你好", "é", "👩‍👩‍👧", "नमस्ते", "𝒳", "a😀b"]


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HFText:
    make = byte_level_tokenizer if request.param == "byte-level" else sentencepiece_tokenizer
    return saved(make(), tmp_path_factory.mktemp("text"))


def streamed(text: HFText, ids: list[int], *, skip_special: bool = True) -> list[str]:
    decoder = text.decoder(skip_special=skip_special)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


def id_sequences(vocab_size: int, amount: int) -> Iterator[list[int]]:
    generator = random.Random(7)
    for _ in range(amount):
        yield [generator.randrange(vocab_size) for _ in range(generator.randint(0, 40))]


@pytest.mark.parametrize("skip_special", [True, False])
def test_streamed_pieces_join_to_the_decoded_whole(text: HFText, skip_special: bool) -> None:
    """Pits A05 and A04: random ids are mostly not UTF-8, which is the hard half."""
    for ids in id_sequences(text.vocab_size, 500):
        pieces = streamed(text, ids, skip_special=skip_special)
        assert "".join(pieces) == text.decode(ids, skip_special=skip_special)


def test_streamed_real_text_joins_and_has_no_replacement_characters(text: HFText) -> None:
    """Pit A03."""
    for line in CORPUS:
        ids = text.encode(line, special=False)
        pieces = streamed(text, ids)
        assert "".join(pieces) == line
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("characters", MULTIBYTE)
def test_characters_of_several_ids_appear_whole(text: HFText, characters: str) -> None:
    """Pit A03."""
    ids = text.encode(characters, special=False)

    pieces = streamed(text, ids)

    assert "".join(pieces) == characters
    assert not any("\ufffd" in piece for piece in pieces)


def test_text_appears_with_the_id_that_completes_it(text: HFText) -> None:
    ids = text.encode("The quick brown fox", special=False)
    decoder = text.decoder()

    pieces = [decoder.push(token_id) for token_id in ids]

    assert "".join(pieces) == "The quick brown fox"
    assert decoder.flush() == ""


def test_an_unfinished_character_is_told_at_the_end_only(text: HFText) -> None:
    ids = text.encode("ok 😀", special=False)[:-1]

    pieces = streamed(text, ids)

    assert pieces[-1].startswith("\ufffd")
    assert "".join(pieces) == text.decode(ids, skip_special=True)


def test_spaces_between_streamed_words_survive(text: HFText) -> None:
    """Pits A04 and A06."""
    line = "a  b   c : 'search' . n't ,"
    ids = text.encode(line, special=False)

    assert text.decode(ids, skip_special=True) == line
    assert "".join(streamed(text, ids)) == line


def test_special_tokens_in_the_stream_give_no_text(text: HFText) -> None:
    eos = min(text.stop_ids)
    ids = text.encode("hello", special=True)

    assert "".join(streamed(text, [*ids, eos])) == "hello"


def test_the_bytes_of_the_ids_join_to_the_text(text: HFText) -> None:
    """Pit A43: a byte-fallback vocabulary spells one character with several tokens."""
    for line in (*CORPUS, *MULTIBYTE):
        ids = text.encode(line, special=False)
        joined = b"".join(text.token_bytes(token_id) for token_id in ids)
        assert joined.decode().removeprefix(" ") == line


def test_special_tokens_have_their_name_as_text_and_bytes(text: HFText) -> None:
    """Pit A45: EOS among the top logprobs."""
    eos = min(text.stop_ids)

    assert text.token_text(eos) in (EOS, TURN_END)
    assert text.token_bytes(eos) == text.token_text(eos).encode()


def test_every_id_has_text_and_an_unknown_one_has_none(text: HFText) -> None:
    for token_id in range(text.vocab_size):
        assert isinstance(text.token_text(token_id), str)
    assert text.token_text(text.vocab_size + 5) == ""
    assert "".join(streamed(text, [text.vocab_size + 5])) == ""


def test_raw_text_gets_the_bos_of_the_tokenizer_only_when_asked(text: HFText) -> None:
    """Pit A20."""
    bare = text.encode("hello", special=False)
    bos = text.encode("", special=True)

    assert len(bos) == 1
    assert text.encode("hello", special=True) == bos + bare


def test_stop_ids_are_the_union_of_tokenizer_config_and_generation_config(tmp_path: Path) -> None:
    """Pit A25: each file alone has been wrong for some model."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9]}))

    text = saved(byte_level_tokenizer(), tmp_path, eos_token_id=7)

    assert text.stop_ids == {3, 5, 7, 9}


def test_generation_defaults_are_read_where_the_model_samples(tmp_path: Path) -> None:
    recommended = {"do_sample": True, "temperature": 0.6, "top_k": 20}
    (tmp_path / "generation_config.json").write_text(json.dumps(recommended))

    text = saved(byte_level_tokenizer(), tmp_path)

    assert text.generation_defaults == GenerationDefaults(temperature=0.6, top_k=20)


def test_a_model_that_recommends_nothing_has_no_defaults(tiny: HFText) -> None:
    assert tiny.generation_defaults is None


def test_lengths_and_sizes_are_the_models(tiny: HFText) -> None:
    assert (tiny.context_length, tiny.vocab_size) == (512, 512)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}'])
def test_a_damaged_tokenizer_is_a_model_error(
    tiny_model_dir: Path, tmp_path: Path, content: str
) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_dir / name, tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(ModelError, match="tokenizer"):
        HFText.load(tmp_path, ModelId("m"))


class CountingTokenizer:
    """A tokenizer that remembers how many ids its longest decoding had."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.longest = 0

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        self.longest = max(self.longest, len(ids))
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


@pytest.mark.parametrize("line", ["The quick brown fox. ", "    ", "a   b\n\n", "é😀 "])
def test_the_work_of_a_token_does_not_grow_with_the_text(line: str) -> None:
    """Pit A92: of eight thousand ids no more than a few are ever decoded again."""
    backend = sentencepiece_tokenizer().backend_tokenizer
    ids = (backend.encode(line * 800, add_special_tokens=False).ids * 8)[:8000]
    counting = CountingTokenizer(backend)
    decoder = WindowDecoder(Pieces(backend), counting, skip_special=True)  # type: ignore[arg-type]

    text = "".join([*(decoder.push(token_id) for token_id in ids), decoder.flush()])

    assert text == backend.decode(ids)
    assert counting.longest <= 24


def test_other_threads_go_on_while_a_long_prompt_is_encoded(
    text: HFText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pit A91. A thread that held the interpreter would leave the other one no turn at all."""
    monkeypatch.setattr(text, "context_length", 10**6)
    words = "The quick brown fox. 你好 😀 " * 10_000
    encoding, turns = threading.Event(), 0
    done = threading.Event()

    def count() -> None:
        nonlocal turns
        encoding.wait()
        while not done.is_set():
            turns += 1

    counting = threading.Thread(target=count)
    counting.start()
    encoding.set()
    before = turns
    ids = text.encode(words, special=False)
    seen = turns - before
    done.set()
    counting.join()

    assert text.decode(ids, skip_special=False) == words
    assert seen > 1_000


@pytest.mark.parametrize("words", ["", " ", "a", "<|im_start|>user\nhi", "Ça va ? 你好 😀"])
@pytest.mark.parametrize("special", [True, False])
def test_a_prompt_alone_has_the_ids_the_tokenizer_gives_it(
    tiny: HFText, tiny_model_dir: Path, words: str, special: bool
) -> None:
    backend = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))

    assert (
        tiny.encode(words, special=special) == backend.encode(words, add_special_tokens=special).ids
    )
