"""A program that speaks as llama-server and ggml-rpc-server do, for tests of what starts them.

With --rpc or without it says in its log that it obeyed. It answers with ids that count up from the
prompt's last; told to crash, it ends instead, and at an instruction where that is refused.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KV = "0.00.1 I llama_kv_cache: {device:>10} KV buffer size = {size:8.2f} MiB"
CELLS = "0.00.1 I llama_kv_cache: size =   44.00 MiB (  2048 cells,  22 layers,  1/1 seqs), K (f16)"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, tokens = asked["prompt"], asked["n_predict"]
        self.send_response(200)
        self.end_headers()
        for number in range(1, tokens + 1):
            # Every third token ends within a character: its id is never told.
            if number % 3 or prompt[0] != 3:
                self._tell(tokens=[prompt[-1] + number], content="x", stop=False)
        short = prompt[0] == 4
        self._tell(stop=True, tokens_predicted=tokens - short, tokens_evaluated=len(prompt))

    def _tell(self, **event: object) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def main() -> None:
    options = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    port = int(options["--port"])
    if "--model" not in options:
        with socket.create_server(("127.0.0.1", port)) as listening:
            while True:
                listening.accept()[0].close()
    behaviour = Path(options["--model"]).stem
    if behaviour == "crash":
        sys.exit("no such model")
    if behaviour == "refused" or (behaviour == "repacks" and "--no-repack" not in sys.argv):
        os.kill(os.getpid(), signal.SIGILL)
    devices = ["CPU"]
    if "--rpc" in options and behaviour != "keeps":
        devices = [f"RPC0[{server}]" for server in options["--rpc"].split(",")]
        print("0.00.1 I load_tensors: offloaded 23/23 layers to GPU")
    for device in devices:
        print(KV.format(device=device, size=44 / len(devices)))
    print(CELLS, flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
