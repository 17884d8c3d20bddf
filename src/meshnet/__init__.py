"""Run one language model over several machines, its KV cache where its layers are."""

__version__ = "0.1.0"
