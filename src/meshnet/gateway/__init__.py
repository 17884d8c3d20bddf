"""The OpenAI-compatible API: validation, chat template, text and stop strings, server-sent events.

It knows no node and no session; tokens come from a `Generator`, text from a `TextModel`.
"""
