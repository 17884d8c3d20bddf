"""The mesh as it happens: what a gateway tells whoever watches it, and who shows that."""
