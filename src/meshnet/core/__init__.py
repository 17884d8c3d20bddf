"""Rules without effects: no clock, socket, thread, log or tensor enters this package."""
