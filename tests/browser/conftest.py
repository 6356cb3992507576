"""What the report is opened in: Debian's Chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver


@pytest.fixture(autouse=True)
def _no_leaks() -> None:
    """In the place of the suite's leak check: a browser starts and ends processes as it likes."""


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """One browser for all tests; what it logs can be read."""
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    assert all(programs.values()), "apt-get install chromium chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs["chromium"])
    # Without its sandbox it runs as root too; it opens nothing but our own files.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(str(programs["chromedriver"]))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
