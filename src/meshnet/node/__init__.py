"""Serves shards: checks what is asked, keeps their sessions, runs their steps."""
