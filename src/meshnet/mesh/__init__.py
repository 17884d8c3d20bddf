"""Which node processes exist: starting them on this machine and keeping them up."""
