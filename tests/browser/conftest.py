"""A real browser on the UI of the flow tests' server. Pictures go to ``COTENANT_PICTURES``, else to a temporary folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.flows.conftest import _rig, rig  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from playwright.sync_api import Page

# A page of the UI is some megabytes of JavaScript, and all cores may be taken.
PATIENCE_MS = 120_000


@pytest.fixture
def page() -> Iterator[Page]:
    playwright = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("no Chromium here; make test-browser installs it on Debian")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("COTENANT_PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
