"""Membership: who is in the mesh, and the small values that its members agree on."""
