"""Which waiting steps a device runs together next (ADR-0031)."""
