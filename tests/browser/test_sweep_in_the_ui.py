"""An owner's whole way in the Prefect UI: the form, a nightly schedule, the review, the progress, the report's picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter

from cotenant.fleet.deployments import client_of
from tests.flows.conftest import NODE, Rig, until
from tests.flows.test_duty_sweep import by_level

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# Each of these stands beside its field: who fills the form needs no other text.
HELP = (
    "by its name in the fleet",
    "gpu, cpu, all, a module, or MODULE/STAGE",
    "The duties to try, ascending",
    "like 22:00-06:30",
    "as a fraction (0.02 is 2 %)",
    "paused, or evicted to free its memory too",
    "do not ask. For schedules and the command line",
)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(1500)]


# The nightly sweep's own parameters, each by the help text of its field.
NIGHTLY = {
    "node": ("The node to measure on", NODE),
    "rule": ("The rule of the node's protection section", "trainer"),
    "work": ("The fleet work under test", "cpu"),
    "window": ("Your hours in the node's local time", "22:00-06:30"),
    "margin": ("The slowdown that counts", "0.04"),
}


def fill(page: Page | Locator, help_text: str, value: str) -> None:
    """The field under this help text: who fills the form goes by these words."""
    words = page.get_by_text(help_text, exact=False).first
    words.locator("xpath=following::*[self::textarea or self::input][1]").fill(value)


def test_a_sweep_from_form_to_report(rig: Rig, page: Page, pictures: Path) -> None:
    by_level(rig, {0.1: 1.0, 0.2: 1.0, 0.35: 0.9})
    rig.agent.block_s = 1.0
    base = rig.url.removesuffix("/api")
    with client_of(rig.url) as client:
        deployment = client.read_deployment_by_name("duty-sweep/duty-sweep")

        def runs() -> list[str]:
            mine = FlowRunFilter.model_validate({"deployment_id": {"any_": [str(deployment.id)]}})
            found = client.read_flow_runs(flow_run_filter=mine, limit=200)
            return [str(run.id) for run in found if run.parameters.get("margin") == 0.03]

        # every night
        page.goto(f"{base}/deployments/deployment/{deployment.id}")
        page.get_by_role("button", name="Schedule").last.click()
        page.get_by_role("button", name="Cron").click()
        dialog = page.get_by_role("dialog").last
        cron = dialog.locator("input[type=text]").nth(1)
        cron.fill("0 23 * * *")
        override(page, dialog)
        page.set_viewport_size({"width": 1280, "height": 1900})  # all of the dialog in one picture
        page.screenshot(path=pictures / "ui-schedule.png")
        page.set_viewport_size({"width": 1280, "height": 1000})
        assert cron.input_value() == "0 23 * * *"

        def nightly_on_server() -> list[Any]:
            schedules = client.read_deployment(deployment.id).schedules
            return [each for each in schedules if getattr(each.schedule, "cron", "") == "0 23 * * *"]

        # the form does not take a click while it still checks what was typed: whoever sees it stay clicks again
        save = dialog.get_by_role("button", name="Save")
        (nightly,) = until(
            lambda: nightly_on_server() or (save.is_visible() and save.click()),
            "the nightly schedule is on the server",
            every_s=15.0,
        )
        chosen = {name: value for name, (_, value) in NIGHTLY.items()} | {"margin": 0.04, "reviewed": True}
        assert nightly.parameters == chosen
        page.get_by_text("11:00 PM").first.wait_for()

        # now, by the form's own words
        before = set(runs())
        page.set_viewport_size({"width": 1280, "height": 2300})  # all of the form in one picture
        page.goto(f"{base}/deployments/deployment/{deployment.id}/run")
        page.get_by_text("The node to measure on").wait_for()
        for words in HELP:
            page.get_by_text(words, exact=False).first.wait_for()
        fill(page, "The node to measure on", NODE)
        fill(page, "The rule of the node's protection section", "trainer")
        fill(page, "The fleet work under test", "cpu")
        fill(page, "Hours of windows and washouts that one level may take", "0.14")
        fill(page, "Length of a counted window", "5")
        fill(page, "Seconds thrown away after each switch", "1")
        fill(page, "The slowdown that counts", "0.03")
        page.screenshot(path=pictures / "ui-form.png")
        page.set_viewport_size({"width": 1280, "height": 1000})
        page.get_by_role("button", name="Submit").click()
        (flow_run,) = until(lambda: set(runs()) - before, "the run that the form started")

        # its review
        rig.wait_state(flow_run, "Suspended")
        page.goto(f"{base}/runs/flow-run/{flow_run}")
        page.get_by_role("button", name="Resume").first.click()
        page.get_by_text("Sweep the duty of cpu beside trainer").first.wait_for()
        page.screenshot(path=pictures / "ui-review.png")
        choose(page)
        page.get_by_role("button", name=re.compile("Submit|Resume")).last.click()

        # its progress: the run, and the bar of the level that runs
        until(lambda: len(rig.agent.memory.started) > 2, "blocks are measured")
        page.goto(f"{base}/runs/flow-run/{flow_run}")
        page.get_by_text(re.compile("Running|Completed")).first.wait_for()  # a quick machine may be through already
        page.screenshot(path=pictures / "ui-running.png")

        def progress() -> str | None:
            parent = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run]}})
            for level in client.read_flow_runs(flow_run_filter=parent):
                of_level = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[level.id]))
                for each in client.read_artifacts(artifact_filter=of_level):
                    if each.type == "progress":
                        return str(each.id)
            return None

        page.goto(f"{base}/artifacts/artifact/{until(progress, 'the progress of a level')}")
        page.get_by_text(re.compile("counted|look at")).first.wait_for()
        page.screenshot(path=pictures / "ui-progress.png")
        done = rig.wait_state(flow_run, "Completed")
        assert done["message"].startswith("Certified duty 0.2 beside trainer: the sweep stopped at duty 0.35")

        # and its report, with the picture
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        artifacts = {str(each.type): each for each in client.read_artifacts(artifact_filter=mine)}
    page.goto(f"{base}/artifacts/artifact/{artifacts['markdown'].id}")
    page.get_by_text("Duty sweep of cpu beside trainer").first.wait_for()
    page.screenshot(path=pictures / "ui-report.png")
    page.goto(f"{base}/artifacts/artifact/{artifacts['image'].id}")
    picture = page.locator("img[src^='data:image/png']").first
    picture.wait_for()
    assert picture.evaluate("image => image.complete && image.naturalWidth > 400")
    page.screenshot(path=pictures / "ui-picture.png")


def override(page: Page, dialog: Locator) -> None:
    """The schedule's own parameters: chosen from the list of all, then filled in by the words beside each."""
    heading = dialog.get_by_text("Parameter Overrides").first
    heading.locator("xpath=following::button[contains(@class,'select')][1]").focus()
    page.keyboard.press("ArrowDown")  # opens the list
    for name in (*NIGHTLY, "reviewed"):
        page.get_by_role("option", name=name, exact=True).first.click()
    dialog.get_by_text("Add schedule").first.click()  # closes the list
    for help_text, value in NIGHTLY.values():
        fill(dialog, help_text, value)
    words = dialog.get_by_text("The plan was reviewed already", exact=False).first
    words.locator("xpath=following::*[@role='switch' or self::input[@type='checkbox']][1]").click()


def choose(page: Page) -> None:
    """approve, in the form's list of decisions."""
    words = page.get_by_text("approve starts the run").first
    words.locator("xpath=following::button[contains(@class,'select')][1]").focus()
    page.keyboard.press("ArrowDown")  # opens the list
    page.get_by_role("option", name="approve").first.click()
