"""What `make test-clients` reads of a suite's results, and writes."""

from __future__ import annotations

from pathlib import Path

from tools.clients import Outcome, outcome_of, page_of

RESULTS = """<testsuites><testsuite>
<testcase name="test_chat"/>
<testcase name="test_schema"/>
<testcase name="test_schema"><failure message="500"/></testcase>
<testcase name="test_images"><skipped message="no   images"/></testcase>
</testsuite></testsuites>"""


def test_results_are_counted_by_how_tests_ended_and_subtests_apart(tmp_path: Path):
    (tmp_path / "results.xml").write_text(RESULTS)

    told = outcome_of("llm", tmp_path / "results.xml")

    assert told.counts == {"passed": 2, "failed": 1, "skipped": 1}
    assert told.reasons == {"test_images": "no   images"}


def test_a_suite_that_left_nothing_has_no_tests(tmp_path: Path):
    assert outcome_of("llm", tmp_path / "none.xml").ended == {}


def test_the_page_has_clients_beside_features_and_says_why_tests_were_skipped():
    one = Outcome("llm", {"test_chat": "passed", "test_images": "skipped"}, {"test_images": "no"})
    two = Outcome("anthropic", {"test_chat": "failed"})

    page = page_of([one, two])

    assert "| `llm` | 1 | 1 | 0 |" in page
    assert "| chat | passed | failed |" in page
    assert "| images | skipped |  |" in page
    assert "| `llm` | no | 1 |" in page
