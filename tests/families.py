"""Tiny random models of many architectures: six layers, hidden 64, windows of 8.

Small enough to save, load and run in a second, and shaped so that every kind of layer state
occurs on both sides of a cut. Weights are redrawn wider than an initialisation would, so that a
lost cache entry changes the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

LAYERS = 6
VOCAB_SIZE = 256

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GROUPS = {"n_group": 1, "topk_group": 1}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "head_dim": 16,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_MAMBA2 = {"mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_HYBRID = [_LINEAR, _LINEAR, _LINEAR, _FULL, _LINEAR, _FULL]
_SLIDING_3_1 = [_SLIDING] * 3 + [_FULL] + [_SLIDING] * 2
_SHARING = [_SLIDING, _SLIDING, _SLIDING, _FULL, _SLIDING, _FULL]
_WINDOW = {"head_dim": 16, "sliding_window": 8}
_PER_LAYER = {
    **_WINDOW,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "num_kv_shared_layers": 2,
    "layer_types": _SHARING,
}


def _on_base(name: str, **overrides: Any) -> tuple[str, dict[str, Any]]:
    settings = {**_BASE, **overrides}
    return name, {key: value for key, value in settings.items() if value is not None}


FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": _on_base("LlamaConfig"),
    "llama-tied": _on_base("LlamaConfig", tie_word_embeddings=True),
    "qwen2": _on_base("Qwen2Config"),
    "qwen2-swa": _on_base(
        "Qwen2Config", use_sliding_window=True, sliding_window=8, max_window_layers=3
    ),
    "qwen3": _on_base("Qwen3Config", head_dim=16),
    "qwen3_moe": _on_base("Qwen3MoeConfig", head_dim=16, **_EXPERTS),
    "qwen3_next": _on_base(
        "Qwen3NextConfig",
        layer_types=_HYBRID,
        shared_expert_intermediate_size=32,
        **_EXPERTS,
        **_DELTA,
    ),
    "qwen3_5": _on_base("Qwen3_5TextConfig", layer_types=_HYBRID, **_DELTA),
    "qwen3_5_moe": _on_base(
        "Qwen3_5MoeTextConfig",
        layer_types=_HYBRID,
        shared_expert_intermediate_size=32,
        **_EXPERTS,
        **_DELTA,
    ),
    "mixtral": _on_base("MixtralConfig", **_LOCAL_EXPERTS),
    "mistral-swa": _on_base("MistralConfig", **_WINDOW),
    "phi3": _on_base("Phi3Config"),
    "gpt_oss": _on_base("GptOssConfig", **_LOCAL_EXPERTS, **_WINDOW),
    "gemma2": _on_base("Gemma2Config", **_WINDOW),
    "gemma3": _on_base("Gemma3TextConfig", layer_types=[_SLIDING] * 5 + [_FULL], **_WINDOW),
    "gemma3n": _on_base(
        "Gemma3nTextConfig",
        **{**_PER_LAYER, "intermediate_size": [96] * LAYERS},
        altup_num_inputs=4,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * LAYERS,
    ),
    "gemma4": _on_base("Gemma4TextConfig", global_head_dim=16, **_PER_LAYER),
    "deepseek_v3": _on_base(
        "DeepseekV3Config",
        q_lora_rank=16,
        first_k_dense_replace=1,
        head_dim=8,
        **_MLA,
        **_ROUTED,
        **_GROUPS,
    ),
    "lfm2": _on_base(
        "Lfm2Config",
        layer_types=["conv", "conv", _FULL, "conv", "conv", _FULL],
        block_auto_adjust_ff_dim=False,
    ),
    "granitemoehybrid": _on_base(
        "GraniteMoeHybridConfig",
        layer_types=["mamba", "mamba", "mamba", "attention", "mamba", "mamba"],
        shared_intermediate_size=32,
        mamba_n_heads=8,
        embedding_multiplier=12.0,
        logits_scaling=8.0,
        residual_multiplier=0.22,
        **_LOCAL_EXPERTS,
        **_MAMBA2,
    ),
    "granite": _on_base("GraniteConfig", embedding_multiplier=12.0, logits_scaling=8.0),
    "jamba": _on_base(
        "JambaConfig",
        attn_layer_offset=2,
        attn_layer_period=3,
        expert_layer_offset=1,
        expert_layer_period=2,
        num_experts=4,
        num_experts_per_tok=2,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_expand=2,
        mamba_dt_rank=8,
    ),
    "bamba": _on_base("BambaConfig", attn_layer_indices=[3], mamba_n_heads=8, **_MAMBA2),
    "falcon_h1": _on_base(
        "FalconH1Config",
        head_dim=16,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        lm_head_multiplier=0.5,
        embedding_multiplier=3.0,
        **_MAMBA2,
    ),
    "nemotron_h": _on_base(
        "NemotronHConfig",
        head_dim=16,
        layers_block_type=["mamba", "moe", "mamba", "attention", "mamba", "moe"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=1,
        chunk_size=16,
        moe_shared_expert_intermediate_size=32,
        **_ROUTED,
        **_GROUPS,
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": 64,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_positions": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt_neox": _on_base("GPTNeoXConfig", num_key_value_heads=None),
    "bloom": (
        "BloomConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "n_layer": LAYERS,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "falcon": (
        "FalconConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "olmo": _on_base("OlmoConfig"),
    "olmo2": _on_base("Olmo2Config"),
    "olmo3-swa": _on_base("Olmo3Config", sliding_window=8),
    "cohere2": _on_base("Cohere2Config", logit_scale=0.25, layer_types=_SLIDING_3_1, **_WINDOW),
    "glm4_moe": _on_base(
        "Glm4MoeConfig", head_dim=16, first_k_dense_replace=1, **_ROUTED, **_GROUPS
    ),
    "llama4": _on_base(
        "Llama4TextConfig",
        head_dim=16,
        intermediate_size_mlp=96,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=8,
        interleave_moe_layer_step=2,
        no_rope_layers=[1, 1, 1, 0, 1, 0],
    ),
    "minimax": _on_base(
        "MiniMaxConfig",
        head_dim=16,
        block_size=16,
        layer_types=[_LINEAR, _FULL] * 3,
        **_LOCAL_EXPERTS,
    ),
    "minimax_m2": _on_base("MiniMaxM2Config", head_dim=16, **_LOCAL_EXPERTS),
    "kimi_linear": _on_base(
        "KimiLinearConfig",
        linear_head_dim=16,
        linear_num_heads=4,
        q_lora_rank=None,
        num_experts=4,
        num_experts_per_token=2,
        moe_intermediate_size=32,
        layer_types=_HYBRID,
        **_MLA,
    ),
    "smollm3": _on_base("SmolLM3Config"),
    "exaone4-swa": _on_base("Exaone4Config", layer_types=_SLIDING_3_1, **_WINDOW),
    "ernie4_5_moe": _on_base(
        "Ernie4_5_MoeConfig",
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=32,
        moe_layer_start_index=1,
    ),
    "gemma": _on_base("GemmaConfig", head_dim=16),
    "olmoe": _on_base("OlmoeConfig", num_experts=4, num_experts_per_tok=2),
    "qwen2_moe": _on_base("Qwen2MoeConfig", shared_expert_intermediate_size=32, **_EXPERTS),
    "deepseek_v2": _on_base(
        "DeepseekV2Config",
        q_lora_rank=16,
        first_k_dense_replace=1,
        head_dim=8,
        **_MLA,
        **_ROUTED,
        **_GROUPS,
    ),
    "granitemoe": _on_base("GraniteMoeConfig", **_LOCAL_EXPERTS),
    "starcoder2": _on_base("Starcoder2Config"),
    "stablelm": _on_base("StableLmConfig"),
    "arcee": _on_base("ArceeConfig"),
    "helium": _on_base("HeliumConfig", head_dim=16),
    "seed_oss": _on_base("SeedOssConfig", head_dim=16),
    "glm4": _on_base("Glm4Config", head_dim=16),
    "phi": _on_base("PhiConfig"),
    "nemotron": _on_base("NemotronConfig"),
    "apertus": _on_base("ApertusConfig"),
    "hunyuan": _on_base("HunYuanDenseV1Config", head_dim=16),
    "opt": (
        "OPTConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "ffn_dim": 96,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 64,
        },
    ),
    "gptj": (
        "GPTJConfig",
        {
            "vocab_size": VOCAB_SIZE,
            "n_embd": 64,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_positions": 256,
            "rotary_dim": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "num_hidden_layers": LAYERS,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
}

DEFAULT_RUN = (
    "llama",
    "qwen3_moe",
    "gemma3",
    "deepseek_v3",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "gpt2",
)
"""The families of the default test run; the others are slow."""


CUTS = ((3,), (2, 3))
"""Two shards; three of which the middle holds one layer."""
SHARING = ("gemma3n", "gemma4")
"""Their layers from 2 on share K/V: `CUTS` are refused, these are not."""
SHARING_CUTS = ((2,), (1, 2))


def family_config(name: str, **overrides: Any) -> Any:
    kind, settings = FAMILIES[name]
    return getattr(transformers, kind)(**{**settings, **overrides})


def save_family(
    path: Path, name: str, *, shard_size: str = "60KB", dtype: str = "float32", **overrides: Any
) -> Path:
    """Write a seeded random model of this family, spread over several safetensors files."""
    torch.manual_seed(0)
    config = family_config(name, **overrides)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    redraw(model)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size=shard_size)
    return path


def redraw(model: Any) -> None:
    """Draw every matrix anew, embeddings widest; leave what recurrent layers depend on.

    Vectors that start at zero are drawn too: Gemma 3n's would switch its per-layer inputs off.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "conv" in name or "A_log" in name or (weight.dim() < 2 and bool(weight.any())):
                continue
            scale = 0.6 if "embed" in name or "wte" in name else 0.18
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    model.tie_weights()
