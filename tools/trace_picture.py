"""Draw the trace of one generation over three nodes, from the spans that a real run exports.

    python -m tools.trace_picture --write docs/images/trace.svg

A mesh of this machine sends its spans to a collector in this process: `meshnet up`, one request
to warm up, one that brings a sampled `traceparent`. `--model` takes what `meshnet up` takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

NODES = 3
TOKENS = 12
DEADLINE_S = 300.0
SPANS_S = 30.0
QUIET_S = 2.0
"""Spans are sent every second."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WARM, TRACED = f"00-{TRACE}-00f067aa0ba902b7-00", f"00-{TRACE}-00f067aa0ba902b7-01"
QUESTION = "Name the planets of the solar system in order, and say one thing about each of them."


@dataclass(frozen=True)
class Told:
    """One span: `who` is its process, times are seconds since the first of all."""

    name: str
    who: str
    began: float
    ended: float


class Collector:
    """Spans of `TRACE` that came so far. The HTTP half of an OTLP collector, and no more."""

    def __init__(self) -> None:
        self.raw: list[tuple[str, str, int, int]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Collect until the block is left; the value is the endpoint."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{self._server.server_address[1]}"
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def take(self, body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = {each.key: each.value.string_value for each in resource.resource.attributes}
            who = told.get("service.instance.id", "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    if span.trace_id.hex() != TRACE:
                        continue
                    times = span.start_time_unix_nano, span.end_time_unix_nano
                    self.raw.append((span.name, who, *times))

    def spans(self) -> list[Told]:
        first = min(began for _, _, began, _ in self.raw)
        return [
            Told(name, who, (began - first) / 1e9, (ended - first) / 1e9)
            for name, who, began, ended in sorted(self.raw, key=lambda each: each[2])
        ]

    def wait(self) -> None:
        """Until its request and hops of all nodes are there, and nothing more comes."""
        until, before = time.monotonic() + SPANS_S, 0
        while time.monotonic() < until:
            names = [(name, who) for name, who, *_ in self.raw]
            whole = any(name.startswith("POST") for name, _ in names)
            steps = sum(name.startswith("step") for name, _ in names)
            hops = {who for name, who in names if name.startswith("hop")}
            quiet, before = len(names) == before, len(names)
            if whole and steps and len(hops) == NODES and quiet:
                return
            time.sleep(QUIET_S)
        sys.exit(f"no whole trace within {SPANS_S:g} s: {len(self.raw)} spans came")


@contextmanager
def mesh(model: str, endpoint: str) -> Iterator[str]:
    """Run a mesh of this machine; the value is its URL."""
    command = [sys.executable, "-m", "meshnet", "up", "--model", model, "--nodes", str(NODES)]
    command += ["--port", "0", "--json-ready", "--set", f"trace_endpoint={endpoint}"]
    command += ["--drafts", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def ask(url: str, traceparent: str, question: str) -> None:
    body = {
        "model": "default", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
        "messages": [{"role": "user", "content": question}],
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "traceparent": traceparent},
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        answer.read()


def traced(model: str) -> list[Told]:
    collector = Collector()
    with collector.serving() as endpoint, mesh(model, endpoint) as url:
        ask(url, WARM, "Say hello.")
        ask(url, TRACED, QUESTION)
        collector.wait()
    return collector.spans()


# --- drawing --------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT, ROW, BAR = 1100, 110, 40, 30, 20
COLOURS = {
    "POST": "#57606a", "generate": "#8250df", "queue": "#bf8700", "prefill": "#1a7f37",
    "decode": "#0969da", "step": "#54aeff", "hop": "#d4a72c", "compute": "#cf222e",
    "refill": "#bc4c00", "move": "#bc4c00", "failover": "#bc4c00",
}  # fmt: skip
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.t{font-size:15px;font-weight:600}"
    ".s{fill:#57606a}.l{fill:#fff}line{stroke:#d0d7de}"
)


def picture(spans: Sequence[Told]) -> str:
    """Return the trace as SVG: all of it, and below one of its tokens."""
    hops = (span for span in spans if span.name.startswith("hop"))
    nodes = dict.fromkeys(hop.who for hop in sorted(hops, key=lambda hop: hop.began))
    lanes = [("request", ""), ("gateway", "generate"), ("", "parts"), ("head", "step")]
    lanes += [(f"node {at}", node) for at, node in enumerate(nodes, start=1)]
    end = max(span.ended for span in spans)
    steps = [span for span in spans if span.name == "step decode"]
    one = steps[len(steps) // 2] if steps else None
    parts, y = _panel("One generation over three nodes", spans, lanes, (0.0, end), 0)
    if one is not None:
        margin = (one.ended - one.began) * 0.04
        about = (one.began - margin, one.ended + margin)
        title = "One token of it: what no node accounts for is the wire"
        more, y = _panel(title, spans, lanes[3:], about, y + 20)
        parts += more
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    title = "<title>Spans of one generation, exported by a gateway and three nodes</title>"
    ground = f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>'
    return "\n".join((head, title, f"<style>{STYLE}</style>", ground, *parts, "</svg>")) + "\n"


def _panel(
    title: str,
    spans: Sequence[Told],
    lanes: Sequence[tuple[str, str]],
    about: tuple[float, float],
    top: int,
) -> tuple[list[str], int]:
    """Return what is drawn of `about`, seconds from and to, and where it ends."""
    begin, end = about
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    parts = [f'<text x="12" y="{top + 24}" class="t">{escape(title)}</text>']
    y, bottom = top + 40, top + 40 + ROW * len(lanes)
    for tick in range(6):
        x = LEFT + (WIDTH - LEFT - RIGHT) * tick / 5
        parts.append(f'<line x1="{x:.1f}" y1="{top + 36}" x2="{x:.1f}" y2="{bottom}"/>')
        shown = f"{1000 * (end - begin) * tick / 5:.3g} ms"
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 15}" class="s" text-anchor="middle">{shown}</text>'
        )
    for label, lane in lanes:
        parts.append(f'<text x="12" y="{y + 15}" class="s">{label}</text>')
        for span in spans:
            if _lane(span) == lane and span.ended > begin and span.began < end:
                x = LEFT + (max(span.began, begin) - begin) * scale
                width = max((min(span.ended, end) - max(span.began, begin)) * scale, 0.6)
                parts.append(_bar(span, x, y, width))
        y += ROW
    return parts, y + 24


def _lane(span: Told) -> str:
    """Which lane a span is in; a node's is named by the node."""
    kind = span.name.partition(" ")[0]
    if kind in ("hop", "compute"):
        return span.who
    return {"POST": "", "generate": "generate", "step": "step"}.get(kind, "parts")


def _bar(span: Told, x: float, y: int, width: float) -> str:
    kind = span.name.partition(" ")[0]
    inset = 5 if kind == "compute" else 0
    took = f"{span.name}: {1000 * (span.ended - span.began):.2f} ms"
    bar = (
        f'<rect x="{x:.1f}" y="{y + inset}" width="{width:.1f}" height="{BAR - 2 * inset}" rx="2" '
        f'fill="{COLOURS.get(kind, "#57606a")}"><title>{escape(took)}</title></rect>'
    )
    if kind == "hop" or width < 7 * len(span.name) + 8:
        return bar
    return bar + f'<text x="{x + 5:.1f}" y="{y + 14}" class="l">{escape(span.name)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE.svg")
    chosen = parser.parse_args()
    spans = traced(chosen.model)
    chosen.write.write_text(picture(spans), encoding="utf-8")
    print(f"{chosen.write}: {len(spans)} spans of {len({span.who for span in spans})} processes")


if __name__ == "__main__":
    main()
