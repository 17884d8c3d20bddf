"""`meshnet chat`: a conversation in the terminal with any gateway.

Ctrl-C stops an answer, never the program; what was said so far stays in the history, so the
model knows what the user saw.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from meshnet.cli import options
from meshnet.cli.interrupts import Interruptible

if TYPE_CHECKING:
    from meshnet.cli.api_client import ApiClient

EXAMPLES = """
[bold]Examples[/bold]

  meshnet chat                                          the mesh of `meshnet up`

  meshnet chat --url http://10.0.0.1:8000 --system "Answer briefly."

Inside: /reset forgets the conversation, /quit or Ctrl-D leaves, Ctrl-C stops the answer.
"""

HELP = "/reset forgets the conversation, /quit leaves, Ctrl-C stops an answer"


def chat(
    url: options.Url = None,
    model: Annotated[str, typer.Option("--model", "-m", help="Model id.")] = "default",
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 512,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2)] = None,
    config: options.Config = None,
    settings: options.Set = None,
) -> None:
    """Talk to a running mesh; the answer streams."""
    from meshnet.cli.credentials import api_client, gateway_here

    chosen = options.settings_from({}, config, settings)
    request: dict[str, object] = {"model": model, "max_tokens": max_tokens}
    if temperature is not None:
        request["temperature"] = temperature
    with api_client(chosen, url or gateway_here(chosen)) as client:
        Conversation(client, request, system).run()


class Conversation:
    """The messages so far, and the loop that adds to them."""

    def __init__(self, client: ApiClient, request: dict[str, object], system: str | None) -> None:
        self._client = client
        self._request = request
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)
        self._interactive = sys.stdin.isatty()
        self._interruptible = Interruptible()

    def run(self) -> None:
        """Read lines until the end of input; raise ApiError only when nobody can retry."""
        if self._interactive:
            print(f"meshnet chat at {self._client.url}. {HELP}.")
        while (line := self._read()) is not None:
            if line == "/quit":
                return
            if line == "/reset":
                self._messages = list(self._opening)
            elif line.startswith("/") and self._interactive:
                print(HELP)
            elif line:
                self._ask(line)

    def _read(self) -> str | None:
        while True:
            try:
                with self._interruptible:
                    return input("\n> " if self._interactive else "").strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                print("\n/quit or Ctrl-D leaves")

    def _ask(self, line: str) -> None:
        from meshnet.cli.api_client import ApiError

        self._messages.append({"role": "user", "content": line})
        answer = ""
        try:
            with self._interruptible:
                for text in self._client.stream_chat(self._messages, self._request):
                    answer += text
                    print(text, end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        except ApiError as error:
            if not self._interactive:
                raise
            print(f"\nerror: {error}", file=sys.stderr)
        print(flush=True)
        if answer:
            self._messages.append({"role": "assistant", "content": answer})
        else:
            self._messages.pop()
