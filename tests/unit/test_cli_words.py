"""What a person reads: one time format, remedies that can be run as they stand, cells that are no Python."""

from __future__ import annotations

import io

import httpx
import pytest
from prefect.exceptions import PrefectHTTPStatusError
from sqlalchemy.exc import OperationalError

from cotenant.cli.agents import with_node
from cotenant.cli.failures import as_result
from cotenant.cli.job import job_id, json_object
from cotenant.cli.render import console, fields, when
from cotenant.cli.result import Exit
from cotenant.cli.timeline import entry_line
from policies.refusal import Refused


def test_one_time_format() -> None:
    assert when("2026-11-29T18:43:53.663411+00:00") == "2026-11-29T18:43:53Z"
    assert when("2026-11-29T18:43:53Z") == "2026-11-29T18:43:53Z"
    assert when(None) is None


def test_a_remedy_names_the_node() -> None:
    assert (
        with_node("cotenant protection show NODE --versions", "mac-01") == "cotenant protection show mac-01 --versions"
    )
    assert with_node("GPU_NODE_X stays", "mac-01") == "GPU_NODE_X stays"


def test_a_job_is_a_number() -> None:
    assert job_id("812") == 812
    for wrong in ("x", "-1", "1.5", "²", ""):
        with pytest.raises(Refused) as refused:
            job_id(wrong)
        assert refused.value.remedy == "cotenant job list"


@pytest.mark.parametrize("raw", [b"\xff\xfe\xfa", b"[1]", "{", "[" * 100_000])
def test_what_is_no_json_object_is_said_to_be_none(raw: str | bytes) -> None:
    with pytest.raises(Refused) as refusal:
        json_object(raw, "payload.json")
    assert refusal.value.code == "PAYLOAD_BAD"
    assert refusal.value.what.startswith("payload.json")
    assert json_object('{"prompts": ["é"]}'.encode(), "payload.json") == {"prompts": ["é"]}


def test_cells_read_as_words() -> None:
    out = io.StringIO()
    console(out).print(fields([("in force", True), ("ok", False), ("share", None), ("jobs", 0)]))
    assert [line.split()[-1] for line in out.getvalue().splitlines()] == ["yes", "no", "–", "0"]


def test_the_timeline_leaves_out_what_says_nothing() -> None:
    entry = {
        "at": "2026-11-29T18:43:53.6+00:00",
        "severity": "info",
        "code": "PROTECTION_BASELINE",
        "message": "measured",
        "data": {"rule": "trainer", "rate": 13.357728793583576, "why": ""},
    }
    assert entry_line(entry).startswith("2026-11-29T18:43:53Z")
    assert entry_line(entry).endswith("measured  rule=trainer rate=13.36")


def test_a_missing_file_is_not_one_to_allow() -> None:
    assert as_result(FileNotFoundError(2, "No such file", "p.json")).errors[0].remedy == "name a file that is there"


def test_a_server_or_store_that_goes_away_in_the_middle_is_no_fault_of_ours() -> None:
    request = httpx.Request("GET", "http://127.0.0.1:4200/api/health")

    def answered(status: int) -> PrefectHTTPStatusError:
        return PrefectHTTPStatusError("said no", request=request, response=httpx.Response(status, request=request))

    away = (
        (httpx.ConnectError("connection refused"), "SERVER_UNREACHABLE", "connection refused"),
        (httpx.ReadTimeout(""), "SERVER_UNREACHABLE", "ReadTimeout"),
        (answered(503), "SERVER_UNREACHABLE", "its database is away"),
        (answered(401), "FLEET_DENIED", "did not take the user and password"),
        (OperationalError("SELECT 1", None, Exception("server closed the connection")), "STORE_UNREACHABLE", "closed"),
    )
    for error, code, why in away:
        result = as_result(error)
        (found,) = result.errors
        assert (found.code, result.exit_code) == (code, Exit.UNREACHABLE)
        assert why in found.why
        assert found.remedy
    assert as_result(answered(404)).errors[0].code == "INTERNAL"
    assert as_result(ValueError("x")).errors[0].code == "INTERNAL"
