"""Render a chat template that came with a model: sandboxed, and bounded in steps.

transformers renders in jinja2's ImmutableSandboxedEnvironment, which keeps a template away from
Python's internals but lets it loop for ever. So every line that a template runs is counted, and
one that exceeds `STEPS_MAX` is stopped. What a single expression allocates is not bounded: a
template is chosen by whoever chose the model's directory, never by a request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jinja2

from meshnet.core.vocabulary import TemplateError

STEPS_MAX = 2_000_000
"""About a second; 4,096 messages in a template of 50 lines take 200,000."""
_TEMPLATE_FILE = "<template>"
_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


class _TooManySteps(BaseException):
    """Not an Exception, so that nothing a template calls can catch it."""


def rendered(render: Callable[[], str], steps_max: int = STEPS_MAX) -> str:
    """Return `render()`, in which a jinja2 template runs.

    Raises:
        TemplateError: with the template's own message where it called `raise_exception`.
    """
    previous = sys.gettrace()
    sys.settrace(_Steps(steps_max).trace)
    try:
        text = render()
    except _TooManySteps as error:
        raise TemplateError(f"the chat template ran more than {steps_max} steps") from error
    except _REFUSALS as error:
        message = str(error) or type(error).__name__
        raise TemplateError(f"the chat template refused the messages: {message}") from error
    finally:
        sys.settrace(previous)
    return text


class _Steps:
    """Counts the lines that run in templates on this thread."""

    def __init__(self, steps_max: int) -> None:
        self._left = steps_max

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        # Called once per Python function; only a template's own frames are followed by line.
        return self._line if frame.f_code.co_filename == _TEMPLATE_FILE else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooManySteps
        return self._line
