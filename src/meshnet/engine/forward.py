"""Running some of the held layers over new positions, tensors in and tensors out.

The trimmed model's own `forward` does the work; this module says what it is called with:
`position_ids` always (some decoders ignore the cache when they make their own), the cache under
the name this transformers version uses, and logits of the last position only.

Invariants
    * one step at a time: the relay between the stand-ins is this runner's;
    * the cache's length is set after the layers ran, never before.

Legend: B batch (1), T new positions, D hidden, V vocabulary, L layers, P per-layer input.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.cache import cache_class, new_cache
from meshnet.engine.rotary import dynamic_rotaries
from meshnet.engine.trimming import TrimmedLayers


@dataclass(frozen=True, slots=True)
class Passing:
    """Hidden states between shards, BTD or with leading axes, and Gemma's per-layer inputs."""

    hidden: Tensor
    per_layer_inputs_BTLP: Tensor | None = None
    """Rows of the layers still to run, only."""


class LayerRunner:
    """The forward of a trimmed model, for any range of the layers it holds."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._model = model
        self._layers: TrimmedLayers = model.meshnet_layers
        self._decoder: Any = self._layers.decoder
        names = inspect.signature(inspect.unwrap(type(self._decoder).forward)).parameters
        self._takes_positions = "position_ids" in names
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._dynamic_rotaries = dynamic_rotaries(self._decoder)
        self._cache_class = cache_class(self._decoder)
        text = model.config.get_text_config(decoder=True)
        self.leading_axes: tuple[int, ...] = ()
        if getattr(text, "altup_num_inputs", None) is not None:
            self.leading_axes = (text.altup_num_inputs,)
        self.per_layer_width: int = 0
        if hasattr(self._decoder, "project_per_layer_inputs"):
            self.per_layer_width = getattr(text, "hidden_size_per_layer_input", 0) or 0
        self.hidden_size: int = text.hidden_size
        self.vocab_size: int = text.vocab_size
        self.held, self.total = self._layers.held, self._layers.total
        # Not read off a parameter: some are kept in fp32 whatever the model's element type.
        self.dtype = dtype
        self.device = next(model.parameters()).device

    def new_cache(self, layers: LayerRange) -> Any:
        return new_cache(self._cache_class, self._model.config, layers)

    def passing(
        self, entering: Tensor | Passing, layers: LayerRange, past_length: int, cache: Any | None
    ) -> Passing:
        """Run `layers` over ids BT or hidden states and return what leaves the last of them.

        At the model's last layer that is the hidden state after the final norm.
        """
        relay = self._layers.relay
        try:
            arguments = self._prepared(entering, layers, past_length, cache)
            output = self._decoder(**arguments)
            if layers.stop == self.total:
                hidden, per_layer = output.last_hidden_state, None
            else:
                assert relay.leaving is not None
                hidden, per_layer = relay.leaving, relay.per_layer_inputs
        finally:
            relay.clear()
        if cache is not None:
            cache.length = past_length + _positions(entering)
        if per_layer is not None:
            per_layer = per_layer[:, :, layers.stop :, :]
        return Passing(hidden, per_layer)

    def logits(
        self, entering: Tensor | Passing, layers: LayerRange, past_length: int, cache: Any | None
    ) -> Tensor:
        """Run `layers`, which end at the model's last, and return the last position's logits V.

        Calls the whole model: soft caps, logit scales and multipliers are its own.
        """
        relay = self._layers.relay
        try:
            arguments = self._prepared(entering, layers, past_length, cache)
            logits_BTV: Tensor = self._model(**arguments, logits_to_keep=1).logits
        finally:
            relay.clear()
        if cache is not None:
            cache.length = past_length + _positions(entering)
        return logits_BTV[0, -1]

    def _prepared(
        self, entering: Tensor | Passing, layers: LayerRange, past_length: int, cache: Any | None
    ) -> dict[str, Any]:
        self._layers.show(layers)
        for rotary in self._dynamic_rotaries:
            rotary.forget()
        arguments: dict[str, Any] = {"use_cache": cache is not None}
        if isinstance(entering, Passing):
            # Only shape, type and device of `inputs_embeds` matter: Entry drops what comes of it.
            leading = len(self.leading_axes)
            arguments["inputs_embeds"] = entering.hidden[(0,) * leading]
            relay = self._layers.relay
            relay.entering = entering.hidden
            relay.per_layer_inputs = self._padded(entering.per_layer_inputs_BTLP, layers)
        else:
            arguments["input_ids"] = entering
        if cache is not None:
            arguments[self._cache_name] = cache
        if self._takes_positions:
            stop = past_length + _positions(entering)
            arguments["position_ids"] = torch.arange(
                past_length, stop, device=self.device
            ).unsqueeze(0)
        return arguments

    def _padded(self, rows_BTLP: Tensor | None, layers: LayerRange) -> Tensor | None:
        """Put the received rows at their layers' absolute indices."""
        if rows_BTLP is None:
            return None
        batch, positions, _, width = rows_BTLP.shape
        before = rows_BTLP.new_zeros((batch, positions, layers.start, width))
        return torch.cat([before, rows_BTLP], dim=2)


def _positions(entering: Tensor | Passing) -> int:
    if isinstance(entering, Passing):
        return entering.hidden.shape[-2]
    return entering.shape[-1]
