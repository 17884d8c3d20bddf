"""The bare wire: so many bytes there, so many back."""

from __future__ import annotations

import queue
import socket
import threading

from meshnet.cli.bench.echo import HOST, read_exactly, round_trip_s, serve


def serving(received: int, sent: int) -> int:
    ports: queue.Queue[int] = queue.Queue()
    threading.Thread(target=serve, args=(received, sent, ports.put), daemon=True).start()
    return ports.get(timeout=30)


def test_a_question_of_the_right_length_is_answered():
    port = serving(5, 3)

    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(b"12")
        connection.sendall(b"345" + b"12345")
        assert read_exactly(connection, 6)


def test_round_trips_take_time_and_another_client_can_come():
    port = serving(4096, 128)

    assert round_trip_s(port, 4096, 128) > 0.0
    assert round_trip_s(port, 4096, 128) > 0.0
