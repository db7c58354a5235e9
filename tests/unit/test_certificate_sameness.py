"""A certificate holds while all that it was earned under is the same: fingerprint, rule, device and bundle; unknown is not the same."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from policies.certificate import Fingerprint, Gpu, admits, differences
from policies.section.models import Rule
from tests.unit.certificates import DIGEST, ISSUED, MODULE, PRINT, PROGRAM, RULE, certificate, record, state_of

CARD = Gpu(name="H200", uuid="GPU-1", memory_bytes=1 << 37, driver="575.1")
UNREAD_CARD = Gpu(name="H200", uuid=None, memory_bytes=None, driver=None)


def cards(**changes: Any) -> dict[str, Any]:
    return {"gpus": (CARD.model_copy(update=changes),)}


def program(**changes: Any) -> dict[str, Any]:
    return {"program": (PROGRAM.model_copy(update=changes),)}


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": ({"cpu_model": "Xeon"}, "CPU: EPYC 7003 → Xeon"),
    "cores": ({"cores": 8}, "cores: 16 → 8"),
    "memory": ({"memory_gib": 62.8}, "memory: 125.6 GiB → 62.8 GiB"),
    "os": ({"os_name": "ubuntu"}, "OS: debian → ubuntu"),
    "os major": ({"os_major": "13"}, "OS major version: 12 → 13"),
    "agent": ({"agent_version": "0.2.0"}, "agent version: 0.1.0 → 0.2.0"),
    "card swapped": (cards(uuid="GPU-2"), "GPU H200: GPU-1 → gone"),
    "no card": ({"gpus": ()}, "GPU H200: GPU-1 → gone"),
    "driver": (cards(driver="580.2"), "GPU H200 driver: 575.1 → 580.2"),
    "driver unread": (cards(driver=None), "GPU H200 driver: 575.1 → unknown"),
    "card memory": (cards(memory_bytes=5), f"GPU H200 memory in bytes: {1 << 37} → 5"),
    "card unread": ({"gpus": (UNREAD_CARD,)}, "GPU H200: GPU-1 → unknown"),
    "cards unread": ({"gpus": None}, "GPUs: 1 → unknown"),
    "cpu unread": ({"cpu_model": None}, "CPU: EPYC 7003 → unknown"),
    "program unread": ({"program": None}, "program: python3 train.py → unknown"),
    "exe": (program(exe="/opt/python3"), "program: /usr/bin/python3 → /opt/python3"),
    "exe content": (program(exe_sha256="f" * 64), "sha256 of /usr/bin/python3: eeeeeeeeeeee → ffffffffffff"),
    "exe unread": (program(exe_sha256=None), "sha256 of /usr/bin/python3: eeeeeeeeeeee → unknown"),
    "script": (program(script="/srv/new.py"), "script: /srv/train.py → /srv/new.py"),
    "script gone": (program(script=None), "script: /srv/train.py → none"),
    "script content": (program(script_sha256="6" * 64), "sha256 of /srv/train.py: 555555555555 → 666666666666"),
    "arguments": (program(argv=("python3", "x")), "program's arguments: python3 train.py → python3 x"),
    "arguments unread": (program(argv=None), "program's arguments: python3 train.py → unknown"),
    "a program more": (
        {"program": (PROGRAM, PROGRAM.model_copy(update={"argv": ("python3", "x")}))},
        "program: none → python3 x",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_what_changed_makes_it_stale_with_old_and_new(what: str) -> None:
    changes, said = CHANGED[what]
    now = PRINT.model_copy(update=changes)
    assert said in differences(PRINT, now)
    found = state_of(certificate(), fingerprint=now)
    assert found.state == "stale"
    assert said in found.why


def test_case_117_every_field_of_the_fingerprint_but_the_kernel_binds() -> None:
    unread = {name: None for name in Fingerprint.model_fields if name not in ("agent_version", "kernel")}
    for name in unread:
        assert differences(PRINT, PRINT.model_copy(update={name: None})) != [], name
    assert differences(PRINT, PRINT.model_copy(update={"kernel": "6.1.0-31"})) == []
    assert differences(PRINT, PRINT) == []


def test_unknown_is_not_the_same_as_unknown() -> None:
    blind = PRINT.model_copy(update={"cpu_model": None, "program": (PROGRAM.model_copy(update={"exe_sha256": None}),)})
    assert differences(blind, blind) == [
        "CPU: unknown → unknown",
        "sha256 of /usr/bin/python3: unknown → unknown",
    ]


def test_memory_that_the_kernel_set_aside_is_no_other_machine() -> None:
    assert differences(PRINT, PRINT.model_copy(update={"memory_gib": 125.4})) == []


def test_a_card_that_changed_its_number_is_the_same_card() -> None:
    cards = tuple(Gpu(name="H200", uuid=f"GPU-{n}", memory_bytes=1, driver="575.1") for n in (1, 2))
    two = PRINT.model_copy(update={"gpus": cards})
    assert differences(two, PRINT.model_copy(update={"gpus": cards[::-1]})) == []
    more = differences(PRINT.model_copy(update={"gpus": cards[:1]}), two)
    assert more == ["GPU H200: none → GPU-2"]


def test_a_program_that_does_not_run_now_is_no_other_program() -> None:
    assert differences(PRINT, PRINT.model_copy(update={"program": ()})) == []


def test_a_single_program_may_stand_without_a_list() -> None:
    raw = PRINT.model_dump() | {"program": PROGRAM.model_dump()}
    assert Fingerprint.model_validate(raw) == PRINT


def test_no_fingerprint_at_all_is_unknown_and_stale() -> None:
    found = state_of(certificate(), fingerprint=None)
    assert (found.state, "unknown" in found.why) == ("stale", True)


def test_of_the_section_the_rule_and_the_duty_device_bind() -> None:
    retagged = RULE.model_copy(update={"tags": ("other",)})
    stricter = Rule.model_validate(RULE.model_dump(exclude_unset=True) | {"pause_fleet": {"scope": "io"}})
    assert state_of(certificate(), rule=retagged).state == "valid"
    assert state_of(certificate(), rule=stricter).why == "rule trainer: as in section version 3 → changed"
    assert state_of(certificate(), rule=None).why == "rule trainer: in force → gone"
    assert state_of(certificate(), duty_device="cpu").why == "duty_device: gpu → cpu"


def test_another_bundle_makes_it_stale() -> None:
    assert state_of(certificate(), bundles={MODULE: DIGEST, "other": "x"}).state == "valid"
    assert (
        state_of(certificate(), bundles={MODULE: "a" * 64}).why
        == f"module {MODULE}: 1.2.0 (bbbbbbbbbbbb) → aaaaaaaaaaaa"
    )
    assert "not ready" in state_of(certificate(), bundles={}).why


def test_revoked_and_edited_ones_say_so_before_anything_else() -> None:
    assert state_of(certificate(), revoked="run r9 ended slowdown").state == "revoked"
    edited = certificate().model_copy(update={"certified_duty": 0.9})
    assert state_of(edited, revoked="x", now=ISSUED + timedelta(days=99)).state == "invalid"


def test_each_names_the_command_that_renews_it() -> None:
    assert (
        state_of(certificate()).renew
        == "cotenant protection ab start mac-01 --rule trainer --work gpu --duty 0.35 --max-hours 8"
    )
    short = certificate(record(window_s=20.0, feed="llmserve/batch", margin=0.05, duty=None), demonstration=True)
    assert state_of(short).renew == (
        "cotenant protection ab start mac-01 --rule trainer --work gpu --window 20 --margin 0.05 --feed llmserve/batch"
        " --max-hours 8"
    )


def test_a_validity_is_plain_json() -> None:
    found = state_of(certificate(), duty_device="cpu").as_dict()
    assert json.loads(json.dumps(found))["differences"] == ["duty_device: gpu → cpu"]


def test_a_certificate_of_another_node_is_none_here() -> None:
    """A home that was copied under another name brings its key along."""
    assert state_of(certificate(), node="mac-01").state == "valid"
    found = state_of(certificate(), node="mac-02")
    assert (found.state, "mac-01" in found.why) == ("invalid", True)
    assert not admits(certificate(), found, accept_demonstration=True).holds
