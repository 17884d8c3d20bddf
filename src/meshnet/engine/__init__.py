"""Loads layers, runs them, keeps their caches, samples, and turns text into ids and back."""
