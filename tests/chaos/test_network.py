"""Places are where they say they are, and who dials whom is told apart."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from tests.chaos.fault_proxy import CLEAR, Passage, Weather
from tests.chaos.namespaces import Namespace, why_impossible
from tests.chaos.network import Place, network_of
from tests.chaos.test_fault_proxy import silent

DEADLINE_S = 60.0
NAMES = ("one", "two", "three")

ECHO = """
import socketserver, sys

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.request.recv(100))

server = socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Echo)
print("listening", flush=True)
server.serve_forever()
"""

DIAL = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20)
connection.sendall(b"hello")
print(connection.recv(100).decode(), flush=True)
"""


@pytest.fixture
def namespaces() -> None:
    if (reason := why_impossible()) is not None:
        pytest.skip(f"no network namespaces, chaos runs on loopback: {reason}")


def python(place: Place, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Run a program where the place is."""
    return subprocess.Popen(
        [*place.wrapper, sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


async def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.usefixtures("namespaces")
async def test_a_place_of_its_own_is_dialled_by_its_address_over_the_link_of_who_dials():
    async with asyncio.timeout(DEADLINE_S), network_of(NAMES, "namespaces") as network:
        one, two = network.place("one"), network.place("two")
        server = python(two, ECHO, two.host, str(two.port))
        assert await said(server) == "listening"

        client = python(one, DIAL, two.host, str(two.port))
        answer = await said(client)
        end(client, server)

    assert answer == "hello"
    dialled = {
        (source, target): network.link(source, target).dialled
        for source in NAMES
        for target in NAMES
    }
    assert dialled == {pair: int(pair == ("one", "two")) for pair in dialled}


@pytest.mark.usefixtures("namespaces")
async def test_one_link_is_cut_and_the_others_into_the_same_place_are_not():
    async with asyncio.timeout(DEADLINE_S), network_of(NAMES, "namespaces") as network:
        one, two, three = map(network.place, NAMES)
        server = python(two, ECHO, two.host, str(two.port))
        assert await said(server) == "listening"
        network.link("one", "two").turn(Weather(there=Passage.SHUT))

        cut = python(one, DIAL, two.host, str(two.port))
        free = python(three, DIAL, two.host, str(two.port))
        answer = await said(free)
        network.link("one", "two").turn(CLEAR)
        late = await said(cut)
        end(cut, free, server)

    assert (answer, late) == ("hello", "hello")


@pytest.mark.usefixtures("namespaces")
async def test_a_process_keeps_its_pid_and_the_test_goes_in_by_a_way_of_its_own():
    async with asyncio.timeout(DEADLINE_S), network_of(NAMES, "namespaces") as network:
        two = network.place("two")
        server = python(
            two, ECHO.replace('"listening"', "__import__('os').getpid()"), two.host, "9000"
        )
        pid = await said(server)
        for link in network.links_of("two"):
            link.turn(Weather(there=Passage.SHUT, back=Passage.SHUT))

        host, _, port = two.front.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello")
        answer = await reader.read()
        writer.close()
        end(server)

    assert pid == str(server.pid)
    assert answer == b"hello"


@pytest.mark.usefixtures("namespaces")
def test_a_namespace_is_gone_with_its_descriptor():
    with Namespace() as made:
        path = made.path
        made.configure(["link set lo up"])

    assert subprocess.run(
        ["nsenter", f"--net={path}", "true"], capture_output=True, check=False
    ).returncode


async def test_on_loopback_a_place_is_dialled_through_its_proxy():
    async with asyncio.timeout(DEADLINE_S), network_of(NAMES, "loopback") as network:
        two = network.place("two")
        server = python(two, ECHO, two.host, str(two.port))
        assert await said(server) == "listening"
        host, _, port = two.url.removeprefix("http://").partition(":")
        network.link("one", "two").turn(Weather(back=Passage.SHUT))

        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"hello")
        assert await silent(reader)
        network.link("three", "two").turn(CLEAR)  # who dials is not told apart here
        answer = await reader.read()
        writer.close()
        end(server)

    assert answer == b"hello"
