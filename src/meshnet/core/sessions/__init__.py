"""Which sessions a node caches, how long each is, and who may extend it (ADR-0022)."""
