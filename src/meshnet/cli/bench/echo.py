"""What a wire alone costs: as many bytes as a step has, there and back by plain blocking sockets.

One process sends, another answers; neither does anything with the bytes.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable

HOST = "127.0.0.1"
ROUND_TRIPS = 200


def serve(received: int, sent: int, ready: Callable[[int], None]) -> None:
    """Answer every `received` bytes with `sent`, for ever; `ready` is told the port."""
    answer = bytes(sent)
    with socket.create_server((HOST, 0)) as listener:
        ready(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while read_exactly(connection, received):
                    connection.sendall(answer)


def round_trip_s(port: int, sent: int, received: int) -> float:
    """Return the median time of a round trip."""
    question, times = bytes(sent), []
    with socket.create_connection((HOST, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(ROUND_TRIPS):
            began = time.perf_counter()
            connection.sendall(question)
            read_exactly(connection, received)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def read_exactly(connection: socket.socket, count: int) -> bool:
    """Read so many bytes. False: the other end is gone."""
    while count > 0:
        got = len(connection.recv(count))
        if got == 0:
            return False
        count -= got
    return True
