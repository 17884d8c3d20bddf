"""`meshnet doctor`: what is wrong with a setup, and what to do about it."""
