"""Our OpenAPI document against what is served: no 5xx, and no answer that it does not tell of."""

import os

import schemathesis
from hypothesis import settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
EXAMPLES = int(os.environ.get("MESHNET_SUITE_EXAMPLES", "25"))
schema = schemathesis.openapi.from_url(
    f"{URL}/openapi.json", headers={"Authorization": f"Bearer {KEY}"}
)


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
def test_schema(case):
    case.call_and_validate(
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=120,
        checks=[
            not_a_server_error, status_code_conformance, content_type_conformance,
            response_schema_conformance,
        ],
    )  # fmt: skip
