"""Which requests are traced, and what goes with them."""

from __future__ import annotations

from tests.gateway.api import USER, Gateway

from meshnet.core.vocabulary import TraceContext
from meshnet.gateway.settings import GatewaySettings
from meshnet.telemetry.events import GatewayAnswered

HELLO = (0,)
GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BODY = {"model": "default", "messages": USER}


async def asked(gateway: Gateway, traceparent: str | None) -> TraceContext | None:
    """The span that a chat of a client with this header is under."""
    headers = {} if traceparent is None else {"traceparent": traceparent}
    answer = await gateway.send("POST", "/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    told = [event for event in gateway.events if isinstance(event, GatewayAnswered)][-1].trace
    assert gateway.generator.requests[-1].traceparent == told
    return told


async def test_a_request_goes_on_with_the_trace_of_its_client():
    """Also where this gateway tells no spans: the nodes may, and logs name the trace."""
    trace = await asked(Gateway(HELLO), GIVEN)

    assert trace is not None
    assert trace.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert (trace.parent, trace.sampled) == ("00f067aa0ba902b7", True)


async def test_a_client_that_does_not_want_a_trace_gets_none_sampled():
    gateway = Gateway(HELLO, settings=GatewaySettings(trace_ratio=1.0))

    trace = await asked(gateway, GIVEN[:-2] + "00")

    assert trace is not None
    assert not trace.sampled


async def test_without_a_client_s_word_the_ratio_decides():
    every = await asked(Gateway(HELLO, settings=GatewaySettings(trace_ratio=1.0)), None)
    none = await asked(Gateway(HELLO, settings=GatewaySettings(trace_ratio=0.0)), "garbage")
    off = await asked(Gateway(HELLO), None)

    assert every is not None
    assert none is not None
    assert (every.sampled, none.sampled, off) == (True, False, None)
    assert TraceContext.parse(str(every)) is not None


async def test_probes_and_scrapes_get_no_trace_of_ours():
    gateway = Gateway(HELLO, settings=GatewaySettings(trace_ratio=1.0))

    await gateway.send("GET", "/health")

    (told,) = gateway.events
    assert isinstance(told, GatewayAnswered)
    assert told.trace is None
