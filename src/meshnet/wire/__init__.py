"""Carries messages between heads and nodes; what a message means is not decided here."""
