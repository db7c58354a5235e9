"""What an owner's server does by itself: the daily check, renewals, sections of remote nodes, schedules that stay."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter
from prefect.client.schemas.schedules import CronSchedule

from cotenant import fleet
from cotenant.cli.remote_section import remote_nodes
from cotenant.fleet.deployments import client_of
from cotenant.settings import Settings
from policies.refusal import Refused
from tests.flows.conftest import NODE, ROOT, Rig, until
from tests.flows.fake_agent import FakeAgent

pytestmark = pytest.mark.timeout(900)


def certificate(state: str, days: float = 10.0, **changes: Any) -> dict[str, Any]:
    """A row as the agent's verb gives it."""
    expires = datetime.now(UTC) + timedelta(days=days)
    return {
        "certificate": "cert-run-1", "run": "run-1", "node": NODE, "rule": "trainer", "work_asked": "cpu",
        "work": [{"module": "m", "stage": "s"}], "duty_asked": 0.3, "certified_duty": 0.29, "window_s": 5.0,
        "washout_s": 1.0, "margin": 0.02, "off": "paused", "feed": None, "max_hours": 0.14, "demonstration": True,
        "expires_at": expires.isoformat(),
        "validity": {"state": state, "why": "program: a → b" if state == "stale" else "until then", "renew": "renew it"},
        **changes,
    }  # fmt: skip


def test_the_daily_check_lists_tells_and_renews_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [certificate("stale"), certificate("valid", certificate="cert-2", rule="other"), certificate("valid", 2.0)]
    monkeypatch.setattr(FakeAgent, "do_certificates", lambda self: rows)
    ask = {"node": NODE, "renew": True, "window": ""}
    first = fleet.run_flow(rig.url, "certificate-expiry/certificate-expiry", ask, NODE)
    done = rig.wait_state(first, "Completed")
    assert done["message"] == "3 certificates, 2 need attention; 1 runs to renew them are queued"

    with client_of(rig.url) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(first)]))
        (table,) = client.read_artifacts(artifact_filter=mine)
        assert "expires soon" in str(table.data)
        assert "program: a" in str(table.data)

        def told() -> set[str]:
            seen = client._client.post(
                "/events/filter", json={"filter": {"event": {"prefix": ["cotenant.certificate."]}}, "limit": 50}
            ).json()["events"]
            return {event["event"] for event in seen}

        until(lambda: {"cotenant.certificate.stale", "cotenant.certificate.expiring"} <= told(), "an event for each")
        runs = [run for run in client.read_flow_runs(limit=200) if "certificate-expiry" in str(run.parameters)]
    assert len(runs) == 1
    renewal = runs[0]
    assert (renewal.parameters["duty"], renewal.parameters["max_hours"]) == (0.3, 0.14)
    assert renewal.parameters["reviewed"] is True
    rig.wait_state(str(renewal.id), "Completed")

    second = fleet.run_flow(rig.url, "certificate-expiry/certificate-expiry", ask, NODE)
    rig.wait_state(second, "Completed")
    with client_of(rig.url) as client:
        again = [run for run in client.read_flow_runs(limit=200) if "certificate-expiry" in str(run.parameters)]
    assert [run.id for run in again] == [renewal.id], "one renewal a day"


def test_a_section_of_a_remote_node_is_set_after_its_review(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[str, str]] = []
    process = {"pid": 7, "argv": ["python", "train|er.py"]}
    matches = [{"rule": "trainer", "processes": [process], "unreadable": []}]
    preview = {"ok": True, "errors": [], "changes": ["rule trainer: added"], "held": [], "matches": matches}
    monkeypatch.setattr(FakeAgent, "do_section_preview", lambda self, text: preview, raising=False)
    monkeypatch.setattr(
        FakeAgent,
        "do_section_set",
        lambda self, text, by: kept.append((text, by)) or {"version": 2, "changes": preview["changes"]},
        raising=False,
    )
    ask = {"node": NODE, "section": "schema = 1\n"}
    flow_run = fleet.run_flow(rig.url, "protection-set/protection-set", ask, NODE)
    rig.wait_state(flow_run, "Suspended")
    text = until(lambda: fleet.review_text(rig.url, flow_run), "the text to review")
    assert "rule trainer: added" in text
    assert "train\\|er.py" in text
    assert not kept, "nothing is set before the review"
    fleet.approve(rig.url, flow_run, "approve")
    done = rig.wait_state(flow_run, "Completed")
    assert done["message"] == f"section version 2 is in force on node {NODE}: rule trainer: added"
    assert kept == [("schema = 1\n", "answered in Prefect")]

    declined = fleet.run_flow(rig.url, "protection-set/protection-set", ask, NODE)
    rig.wait_state(declined, "Suspended")
    until(lambda: fleet.review_text(rig.url, declined), "the text to review")
    fleet.approve(rig.url, declined, "reject")
    assert rig.wait_state(declined, "Rejected")["message"] == "refused by review"
    assert len(kept) == 1


def test_a_section_is_previewed_on_a_remote_node_and_nothing_is_changed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from cotenant.cli import main

    matches = [{"rule": "trainer", "processes": [{"pid": 7, "argv": ["python", "trainer.py"]}], "unreadable": []}]
    valid = {"ok": True, "errors": [], "changes": ["rule trainer: added"], "held": [], "matches": matches}
    wrong = {"ok": False, "errors": [{"line": 3, "key": "maxx", "message": "unknown key"}]}
    monkeypatch.setattr(
        FakeAgent, "do_section_preview", lambda _, text: wrong if "maxx" in text else valid, raising=False
    )
    # A home of another machine of this fleet: it has the server's address and no such node.
    for name in [name for name in os.environ if name.startswith("COTENANT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COTENANT_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("COTENANT_NODE", "elsewhere")
    monkeypatch.setenv("COTENANT_PREFECT_API_URL", rig.url)
    (tmp_path / "s.toml").write_text("schema = 1\n")
    (tmp_path / "wrong.toml").write_text("maxx = 1\n")

    assert main.main(["protection", "preview", NODE, str(tmp_path / "s.toml")]) == 0
    said = capfd.readouterr()
    assert "rule trainer: added" in said.out
    assert "7 python trainer.py" in said.out
    assert main.main(["protection", "preview", NODE, str(tmp_path / "wrong.toml")]) == 2
    assert "line 3, key maxx: unknown key" in capfd.readouterr().err
    assert main.main(["protection", "preview", f"{NODE}x", str(tmp_path / "s.toml")]) == 2
    assert f"Did you mean {NODE!r}?" in capfd.readouterr().err
    assert NODE in remote_nodes(Settings.from_env()), "set --fleet asks for them"


def test_a_change_of_the_flows_leaves_the_owners_schedules_and_pauses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client_of(rig.url) as client:
        before = client.read_deployment_by_name("duty-sweep/duty-sweep")
        cron = DeploymentScheduleCreate(
            schedule=CronSchedule(cron="0 22 * * *", timezone="Europe/Berlin"), active=False
        )
        client.create_deployment_schedules(before.id, [cron])
    from cotenant.fleet import deployments

    monkeypatch.setattr(deployments, "_digest", lambda root, file: "another version")
    assert fleet.deploy(rig.url, ROOT) is True
    with client_of(rig.url) as client:
        after = client.read_deployment_by_name("duty-sweep/duty-sweep")
    assert (after.id, after.version) == (before.id, "another version")
    assert [(each.schedule.cron, each.active) for each in after.schedules] == [("0 22 * * *", False)]
    monkeypatch.undo()
    fleet.deploy(rig.url, ROOT)


def test_the_house_is_kept_once_and_what_the_owner_deletes_stays_deleted(rig: Rig) -> None:
    made = fleet.keep_house(rig.url, rig.home)
    assert "cotenant: runs without a heartbeat" in made
    assert fleet.keep_house(rig.url, rig.home) == []
    with client_of(rig.url) as client:
        there = {each["name"]: each for each in client._client.post("/automations/filter", json={}).json()}
        assert set(made) <= set(there)
        example = there["cotenant example: sweep when a certificate goes stale"]
        assert example["enabled"] is False
        assert there["cotenant: runs without a heartbeat"]["trigger"]["within"] >= 1800
        client._client.delete(f"/automations/{example['id']}")
    assert fleet.keep_house(rig.url, rig.home) == []

    assert fleet.ensure_daily_check(rig.url, NODE, rig.home) is True
    assert fleet.ensure_daily_check(rig.url, NODE, rig.home) is False
    with client_of(rig.url) as client:
        found = client.read_deployment_by_name("certificate-expiry/certificate-expiry")
        (daily,) = [each for each in found.schedules if each.parameters == {"node": NODE}]
        client.delete_deployment_schedule(found.id, daily.id)
    assert fleet.ensure_daily_check(rig.url, NODE, rig.home) is False
    with client_of(rig.url) as client:
        assert not client.read_deployment_by_name("certificate-expiry/certificate-expiry").schedules


def test_what_is_no_certificate_check_is_refused_readably(rig: Rig) -> None:
    with pytest.raises(Refused, match="did you mean 'renew'"):
        fleet.run_flow(rig.url, "certificate-expiry/certificate-expiry", {"node": NODE, "renw": True}, NODE)
    with client_of(rig.url) as client:
        model = client.read_deployment_by_name("certificate-expiry/certificate-expiry")
        names = FlowRunFilter.model_validate({"deployment_id": {"any_": [str(model.id)]}})
        before = len(client.read_flow_runs(flow_run_filter=names))
    bad = fleet.run_flow(
        rig.url, "certificate-expiry/certificate-expiry", {"node": NODE, "window": "22:00-22:00"}, NODE
    )
    assert "begins and ends at the same time" in rig.wait_state(bad, "Refused")["message"]
    with client_of(rig.url) as client:
        assert len(client.read_flow_runs(flow_run_filter=names)) == before + 1
