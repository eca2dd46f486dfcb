"""The OpenAPI document: valid, whole, and what is served is what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from quantum.admin import ROUTES, document
from tests.clustor.control.plane import OPERATOR, proof, settled_plane
from tests.clustor.control.samples import bundle, manifest
from tests.quantum.admin.host import Host
from tests.quantum.admin.serving import served
from tests.quantum.admin.test_pages import Explains

DOCUMENT = json.loads(document(ROUTES))


def rejected_where_it_must_be(context: Any, response: Any, case: Any) -> bool | None:
    """What is too large is rejected as well, before anybody looks into it."""
    if response.status_code == 413:
        return None
    found: bool | None = negative_data_rejection(context, response, case)
    return found


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    rejected_where_it_must_be,
]

schema = schemathesis.openapi.from_dict(DOCUMENT)


def test_the_document_is_valid_openapi_and_names_every_route_once() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    documented = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert documented == {(route.method, route.path) for route in ROUTES}


def test_what_requests_may_spell_in_two_ways_answers_spell_in_one() -> None:
    parts = DOCUMENT["components"]["schemas"]
    assert parts["Members"]["properties"]["voters"]["items"]["type"] == "string"
    spelled = parts["MembersInput"]["properties"]["voters"]["items"]["anyOf"]
    assert {each["type"] for each in spelled} == {"integer", "string"}
    body = parts["PlacePartitionBody"]["properties"]["members"]
    assert body["$ref"] == "#/components/schemas/MembersInput"
    assert parts["SetAclsBody"]["additionalProperties"] is False
    value = parts["ConfigValue"]["properties"]["value"]["anyOf"]
    assert [each["type"] for each in value] == ["boolean", "integer", "string"]


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    plane = settled_plane()
    plane.publish(proof(1, 10))
    plane.done(manifest())
    plane.done(bundle())
    explains = Explains()
    with served(Host(plane), development=OPERATOR, why=explains, groups=explains) as (address, _):
        yield f"http://{address}"


@schema.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_is_served_is_what_is_documented(case: Any, base_url: str) -> None:
    case.call_and_validate(base_url=base_url, checks=CHECKS)


@pytest.mark.soak
@schema.parametrize()
@settings(
    max_examples=500,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
def test_soak_of_what_is_documented(case: Any, base_url: str) -> None:
    case.call_and_validate(base_url=base_url, checks=CHECKS)
