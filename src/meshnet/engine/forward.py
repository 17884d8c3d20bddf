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
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meshnet.core.vocabulary import LayerRange
from meshnet.engine.cache import KVLayer, cache_class, new_cache
from meshnet.engine.gathering import gather_states
from meshnet.engine.interface import implementations, is_ours
from meshnet.engine.rotary import dynamic_rotaries
from meshnet.engine.runner import Passing, Segment
from meshnet.engine.together import LAYOUT, SharedCache, can_be_together, layout_of
from meshnet.engine.trimming import TrimmedLayers


class LayerRunner:
    """The forward of a trimmed model, for any range of the layers it holds."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model = model
        self.config = model.config
        self._layers: TrimmedLayers = model.meshnet_layers
        self._decoder: Any = self._layers.decoder
        names = inspect.signature(inspect.unwrap(type(self._decoder).forward)).parameters
        self._takes_positions = "position_ids" in names
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._dynamic_rotaries = dynamic_rotaries(self._decoder)
        self._cache_class = cache_class(self._decoder)
        gather_states(self._layers)
        text = model.config.get_text_config(decoder=True)
        self.leading_axes: tuple[int, ...] = ()
        if getattr(text, "altup_num_inputs", None) is not None:
            self.leading_axes = (text.altup_num_inputs,)
        self.per_layer_width: int = 0
        if hasattr(self._decoder, "project_per_layer_inputs"):
            self.per_layer_width = getattr(text, "hidden_size_per_layer_input", 0) or 0
        # MLA keeps what keys and values are made of, and makes them anew in every step.
        self._latent: bool = getattr(text, "kv_lora_rank", None) is not None
        self.hidden_size: int = text.hidden_size
        self.vocab_size: int = text.vocab_size
        self.held, self.total = self._layers.held, self._layers.total
        # Not read off a parameter: some are kept in fp32 whatever the model's element type.
        self.dtype = dtype
        self.device = next(model.parameters()).device
        self.attention: str = model.config._attn_implementation

    def use_attention(self, name: str) -> None:
        """Make every layer attend by what transformers knows as `name`."""
        for implement in implementations(self.model):
            implement(name)
        self.attention = name

    @property
    def batches(self) -> bool:
        """Whether nothing but the rows' positions tells the sessions of a batch apart."""
        cache = self.new_cache(self.held)
        attends = any(isinstance(layer, KVLayer) for layer in cache.layers)
        told = not attends or (self._takes_positions and is_ours(self.attention))
        return told and not self._dynamic_rotaries and can_be_together(cache)

    def new_cache(self, layers: LayerRange) -> Any:
        return new_cache(self._cache_class, self.model.config, layers)

    def passing(
        self, entering: Tensor | Passing, layers: LayerRange, segments: Sequence[Segment]
    ) -> Passing:
        """Run `layers` over ids BT or hidden states and return what leaves the last of them.

        At the model's last layer that is the hidden state after the final norm.
        """
        relay = self._layers.relay
        try:
            output = self._decoder(**self._prepared(entering, layers, segments))
            if layers.stop == self.total:
                hidden, per_layer = output.last_hidden_state, None
            else:
                assert relay.leaving is not None
                hidden, per_layer = relay.leaving, relay.per_layer_inputs
        finally:
            relay.clear()
        _extend(segments)
        if per_layer is not None:
            per_layer = per_layer[:, :, layers.stop :, :]
        return Passing(hidden, per_layer)

    def logits(
        self,
        entering: Tensor | Passing,
        layers: LayerRange,
        segments: Sequence[Segment],
        rows: Sequence[int],
    ) -> Tensor:
        """Run `layers`, which end at the model's last, and return the logits of `rows`: RV.

        Calls the whole model: soft caps, logit scales and multipliers are its own.
        """
        relay = self._layers.relay
        kept = torch.tensor(rows, device=self.device)
        try:
            arguments = self._prepared(entering, layers, segments)
            logits_BRV: Tensor = self.model(**arguments, logits_to_keep=kept).logits
        finally:
            relay.clear()
        _extend(segments)
        return logits_BRV[0]

    def _prepared(
        self, entering: Tensor | Passing, layers: LayerRange, segments: Sequence[Segment]
    ) -> dict[str, Any]:
        cache = segments[0].cache
        arguments: dict[str, Any] = {}
        if len(segments) > 1:
            caches, lengths = [s.cache for s in segments], [s.length for s in segments]
            cache = SharedCache(caches, lengths, latent=self._latent)
            if self._latent:
                arguments[LAYOUT] = layout_of(caches, lengths)
        self._layers.show(layers)
        for rotary in self._dynamic_rotaries:
            rotary.forget()
        arguments["use_cache"] = cache is not None
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
            positions = [at for s in segments for at in range(s.past_length, s.stop)]
            arguments["position_ids"] = torch.tensor([positions], device=self.device)
        return arguments

    def _padded(self, rows_BTLP: Tensor | None, layers: LayerRange) -> Tensor | None:
        """Put the received rows at their layers' absolute indices."""
        if rows_BTLP is None:
            return None
        batch, positions, _, width = rows_BTLP.shape
        before = rows_BTLP.new_zeros((batch, positions, layers.start, width))
        return torch.cat([before, rows_BTLP], dim=2)


def _extend(segments: Sequence[Segment]) -> None:
    for segment in segments:
        if segment.cache is not None:
            segment.cache.settle(segment.stop)
