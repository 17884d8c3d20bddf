import io

import pytest
from rich.console import Console

from meshnet.cli.report import as_json, bytes_text, from_json, print_table, report_of, show_table
from meshnet.cli.report_members import members_table
from meshnet.core.vocabulary import (
    Capabilities,
    DType,
    KVBytes,
    LayerRange,
    ModelId,
    NodeDescription,
    NodeId,
    ShardDescription,
)

MODEL = ModelId("m")


def shard(start: int, stop: int, model: ModelId = MODEL) -> ShardDescription:
    return ShardDescription(
        model=model, fingerprint="f", layers=LayerRange(start, stop), layers_total=30,
        dtype=DType.FP32, hidden_size=64, vocab_size=100, context_length=512,
        capabilities=Capabilities(True, True), kv_bytes=KVBytes(512), weight_bytes=254_900_000,
        bytes_read=254_800_000, arithmetic="a",
    )  # fmt: skip


def node(*shards: ShardDescription, compute_s: float = 1.0) -> NodeDescription:
    return NodeDescription(
        node=NodeId("http://127.0.0.1:40001"), wire=1, pid=12345, ready=True, shards=shards,
        sessions=1, sessions_max=8, kv_bytes=1_600_000, kv_bytes_max=2**30, compute_s=compute_s,
        steps=3,
    )  # fmt: skip


def test_a_report_reads_back_what_it_wrote():
    reports = (report_of("node-1", "http://127.0.0.1:40001", node(shard(0, 10)), MODEL),)

    assert from_json(as_json(reports)) == reports
    assert as_json(reports)[0]["layers"] == [0, 10]


def test_a_table_fits_a_narrow_terminal_uncut():
    reports = [
        report_of("node-10", "http://127.0.0.1:40001", node(shard(0, 10)), MODEL),
        report_of("node-11", "http://127.0.0.1:40002", node(shard(10, 30), compute_s=3.0), MODEL),
    ]
    out = io.StringIO()

    print_table(Console(file=out, width=80), reports, urls=True)

    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert "…" not in out.getvalue()
    assert "10-30" in lines[2]
    assert "75 %" in lines[2]


@pytest.mark.parametrize("width", [40, 66, 70, 74, 80, 120])
def test_titles_and_cells_are_whole_in_a_terminal_of_any_width(width: int):
    """A title of two words once was cut where its longest word still had room."""
    report = report_of("node-1", "http://127.0.0.1:40001", node(shard(0, 10)), MODEL)
    members = members_table(
        [
            {
                "node": "http://192.168.100.20:39001", "state": "serving", "layers": "0-10",
                "lease_left_s": 9.6, "memory_bytes": 12_000_000_000, "threads": 2,
                "failure": "no such model",
            }
        ]
    )  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=width)

    print_table(console, [report], urls=True)
    show_table(console, members)

    assert "…" not in out.getvalue()
    for whole in ("KV cache", "254.9 MB", "192.168.100.20:39001", "no such model"):
        assert whole in out.getvalue()


def test_a_node_that_is_named_by_its_address_is_shown_without_it_again():
    out = io.StringIO()

    print_table(
        Console(file=out, width=80),
        [report_of("127.0.0.1:40001", "http://127.0.0.1:40001", node(shard(0, 10)), MODEL)],
        urls=True,
    )

    assert "address" not in out.getvalue()
    assert out.getvalue().count("127.0.0.1:40001") == 1


def test_a_node_that_still_loads_is_shown_as_such():
    out = io.StringIO()

    print_table(
        Console(file=out, width=80), [report_of("n", "http://h:1", node(), MODEL)], urls=False
    )

    assert "none yet" in out.getvalue()


def test_sizes_are_told_with_one_decimal_and_a_unit():
    assert [bytes_text(n) for n in (999, 1500, 254_900_000)] == ["999 B", "1.5 kB", "254.9 MB"]


def test_layers_are_those_of_the_model_that_is_asked_about():
    several = node(shard(0, 10), shard(4, 30, ModelId("other")))

    report = report_of("n", "http://h:1", several, MODEL)

    assert report.layers == (0, 10)
    assert report.weight_bytes == 2 * 254_900_000
