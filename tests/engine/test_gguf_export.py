"""A Llama written as GGUF is the same Llama when it is read again, by others and by us."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from tests.models import CORPUS, tiny_llama
from transformers import AutoModelForCausalLM

from meshnet.core.vocabulary import ModelError, ModelId
from meshnet.engine.models.gguf import convert_gguf
from meshnet.engine.models.gguf_export import export_gguf, exported
from meshnet.engine.models.progress import NoProgress
from meshnet.engine.text import HFText

LAYERS = 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "tiny", layers=LAYERS)


def read_again(source: Path, folder: Path, kind: str) -> Path:
    export_gguf(source, folder / "model.gguf", "tiny", kind, NoProgress())
    target = folder / "again"
    target.mkdir()
    convert_gguf(folder / "model.gguf", target, "tiny", NoProgress())
    return target


def weights(directory: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return dict(model.state_dict())


def test_float32_comes_back_exactly(source: Path, tmp_path: Path) -> None:
    again = read_again(source, tmp_path, "f32")

    before, after = weights(source), weights(again)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_q8_0_comes_back_within_half_a_step(source: Path, tmp_path: Path) -> None:
    again = read_again(source, tmp_path, "q8_0")

    before, after = weights(source), weights(again)
    for name, values in before.items():
        if values.dim() == 1:
            assert torch.equal(values, after[name])
            continue
        blocks = values.reshape(-1, 32)
        step = blocks.abs().amax(1, keepdim=True) / 127
        # The step itself is stored as a half float: 127 of them are off by 127 times its error.
        bound = step / 2 + 127 * step * 2.0**-11
        error = (after[name].reshape(-1, 32) - blocks).abs()
        assert (error <= bound).all()
        assert error.max() > 0


def test_the_gguf_library_reads_every_tensor_in_its_place(source: Path, tmp_path: Path) -> None:
    export_gguf(source, tmp_path / "model.gguf", "tiny", "q8_0", NoProgress())

    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "model.gguf").tensors}

    assert len(tensors) == 3 + 9 * LAYERS
    matrices = [t for t in tensors.values() if not t.name.endswith("norm.weight")]
    assert {t.tensor_type for t in matrices} == {GGMLQuantizationType.Q8_0}
    head = tensors["output.weight"]
    found = dequantize(head.data, head.tensor_type)
    assert np.abs(found - weights(source)["lm_head.weight"].numpy()).max() < 0.01


def test_the_tokenizer_splits_as_before(source: Path, tmp_path: Path) -> None:
    again = HFText.load(read_again(source, tmp_path, "f32"), ModelId("again"))
    before = HFText.load(source, ModelId("before"))

    for line in CORPUS:
        assert again.encode(line, special=True) == before.encode(line, special=True)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2"},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"num_hidden_layers": LAYERS + 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_the_format_could_not_say_is_refused(
    source: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in source.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **change}))

    with pytest.raises(ModelError):
        export_gguf(other, tmp_path / "model.gguf", "tiny", "q8_0", NoProgress())


def test_the_cached_file_is_written_again_when_the_weights_change(
    source: Path, tmp_path: Path
) -> None:
    own = tiny_llama(tmp_path / "own", layers=1, seed=1)
    first = exported(own, "tiny", "q8_0", tmp_path, NoProgress())
    before = first.read_bytes()
    assert exported(own, "tiny", "q8_0", tmp_path, NoProgress()).stat() == first.stat()

    tiny_llama(own, layers=1, seed=2)
    second = exported(own, "tiny", "q8_0", tmp_path, NoProgress())

    assert second == first
    assert second.read_bytes() != before
