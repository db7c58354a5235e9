"""A node joins a fleet whose server asks for a password; what is mistyped is refused with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.settings import FLEET_FILE
from tests.postgres.conftest import Cluster
from tests.postgres.fleet_rig import AUTH, Hub, Member

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture
def hub(tmp_path: Path, postgres: Cluster) -> Iterator[Hub]:
    found = Hub(tmp_path / "hub", "hub", postgres)
    try:
        found.up()
        yield found
    finally:
        found.stop()


def test_a_node_joins_with_the_password_and_what_is_mistyped_is_refused(
    hub: Hub, tmp_path: Path, postgres: Cluster
) -> None:
    member = Member(tmp_path / "mac-01", "mac-01")
    file = member.home / FLEET_FILE

    # without the password, and with a wrong one: the reason, what to do, and the home as it was
    for given in ((), ("--auth-string", "ops:wrong")):
        denied = member.is_refused("node", "join", "mac-01", "--server", hub.server, *given)
        assert denied["code"] == "FLEET_DENIED", denied
        assert "password" in denied["why"]
        assert "--auth-string" in denied["remedy"]
        assert "wrong" not in str(denied), "a password is not said again"
        assert not file.exists()
    store = ("--store", postgres.url("cotenant"))
    lost = member.is_refused(
        "node", "join", "mac-01", "--server", hub.server, "--auth-string", AUTH, "--store",
        postgres.url("cotenant").replace("secret", "wrong"),
    )  # fmt: skip
    assert lost["code"] == "STORE_UNREACHABLE", lost
    assert "wrong" not in str(lost)
    assert not file.exists()
    taken = member.is_refused("node", "join", "hub", "--server", hub.server, "--auth-string", AUTH, *store)
    assert taken["code"] == "NODE_TAKEN"

    joined = member.asks("node", "join", "mac-01", "--server", hub.server, "--auth-string", AUTH, *store)
    assert joined["node"] == "mac-01"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in str(joined)

    # a mistyped node is refused and not queued for ever: no queue was made, no run waits
    (member.home / "section.toml").write_text(member.rig.section())
    for who, typed, words in (
        (hub, "mac-1", ("protection", "set", "mac-1", str(member.home / "section.toml"), "--yes")),
        (member, "hbu", ("protection", "set", "hbu", str(member.home / "section.toml"), "--yes")),
        (hub, "hbu", ("protection", "ab", "sweep", "hbu", "--rule", "stepper", "--yes")),
    ):
        refused = who.is_refused(*words)
        assert refused["code"] == "NODE_UNKNOWN", (words, refused)
        assert typed in refused["what"]
        assert "cotenant node" in refused["remedy"]
        assert f"Did you mean {'mac-01' if typed == 'mac-1' else 'hub'!r}?" in refused["why"], refused
    elsewhere = hub.is_refused("protection", "duty", "mac-01")
    assert elsewhere["code"] == "NODE_ELSEWHERE"
    assert hub.server in elsewhere["remedy"]
    rows = {row["node"]: row for row in member.asks("node", "list", "--fleet")}
    assert set(rows) == {"hub", "mac-01"}
    assert rows["hub"]["worker"] == "online"
    assert rows["mac-01"]["worker"] == "offline", "it has joined and was not started"
    assert postgres.query("prefect", "SELECT count(*) FROM flow_run WHERE state_type <> 'SCHEDULED'") == "0"
