"""The composition root: settings, wiring and commands. Nothing below knows any of it."""
