"""The report in a browser: themes, widths, pointer and keys; screenshots are in build/report."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from envfleet.report.writing import write_comparison
from report_runs import PLAN, make_run, metrics

SHOTS = Path(__file__).parents[2] / "build" / "report"
WIDTHS, THEMES = (400, 1400), ("light", "dark")
EVIL = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"

CONTRASTS = """
// The lowest contrast of any visible text with what is behind it, and the text.
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
  return [...paint.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255];
};
let worst = [99, ""];
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.closest("svg, script")) continue;
  const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < worst[0]) worst = [ratio, walk.currentNode.data];
}
return worst;
"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Pages by name: a run, groups of runs, one row, many rows, a run whose texts are hostile."""
    folder = tmp_path_factory.mktemp("runs")
    videos = {"render_0.gif": 0, "render_1.gif": 5120}
    run = make_run(folder / "first", metrics(60), videos=videos, plan=PLAN, total_steps=15_360)
    groups = [
        make_run(
            folder / f"lr{rate}-s{seed}",
            metrics(80, seed, late=3 + 200 * rate + seed / 3),
            seed=seed,
            learning_rate=rate,
            plan=PLAN,
        )
        for rate in (0.001, 0.003, 0.01)
        for seed in range(4)
    ]
    evil = {EVIL: np.arange(4.0), **metrics(4)}
    evil = {"step": evil.pop("step"), **evil}
    sources = {
        "run": [run],
        "groups": groups,
        "one-row": [make_run(folder / "one", metrics(1))],
        "many-rows": [make_run(folder / "many", metrics(20_000))],
        "no-episodes": [make_run(folder / "none", metrics(30, episodes=False))],
        "hostile": [make_run(folder / "hostile", evil, env_id=EVIL, **{EVIL: EVIL})],
    }
    made = {name: folder / f"{name}.html" for name in sources}
    for name, folders in sources.items():
        write_comparison(folders, made[name])
    return made


def open_page(browser, page, width=1400, theme="light"):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())
    browser.execute_script(
        "localStorage.clear();"
        "delete document.documentElement.dataset.theme;"
        "document.documentElement.style.scrollBehavior = 'auto';"  # clicks do not wait for it
    )


def shoot(browser, name, *, whole=True):
    SHOTS.mkdir(parents=True, exist_ok=True)
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole}
    )
    (SHOTS / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", ["run", "groups", "one-row", "many-rows", "no-episodes", "hostile"]
)
def test_the_page_fits_can_be_read_and_asks_for_nothing(browser, pages, name, width, theme):
    browser.get_log("browser")
    open_page(browser, pages[name], width, theme)
    shoot(browser, f"{name}-{width}-{theme}")
    assert browser.get_log("browser") == []  # errors, and what the page's policy has refused
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    asked = browser.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [address for address in asked if not address.startswith("data:")] == []
    ratio, text = browser.execute_script(CONTRASTS)
    assert ratio >= 4.5, text
    small = browser.execute_script(
        "return [...document.querySelectorAll('button, summary, nav a')]"
        ".map((e) => [e.textContent, e.getBoundingClientRect().height])"
        ".filter(([, height]) => height > 0 && height < 24)"
    )
    assert small == []
    assert browser.execute_script("return window.hacked") is None


def test_curves_are_drawn_inside_their_area(browser, pages):
    open_page(browser, pages["run"])
    for figure in browser.find_elements(By.CSS_SELECTOR, ".chart"):
        area = figure.find_element(By.CSS_SELECTOR, ".area").rect
        curve = figure.find_element(By.CSS_SELECTOR, "[data-curve]").rect
        assert curve["width"] > 0.9 * area["width"]
        assert area["y"] - 1 <= curve["y"]
        assert curve["y"] + curve["height"] <= area["y"] + area["height"] + 1


def test_the_theme_is_the_systems_until_the_button_is_pressed(browser, pages):
    open_page(browser, pages["run"], theme="dark")

    def is_dark():
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(","))) < 200

    button = browser.find_element(By.ID, "theme")
    assert is_dark()
    browser.refresh()
    button = browser.find_element(By.ID, "theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert not is_dark()
    assert button.get_attribute("aria-pressed") == "false"
    browser.refresh()
    assert not is_dark()  # it is remembered


def test_the_pointer_shows_the_values_of_a_step(browser, pages):
    open_page(browser, pages["run"])
    columns = metrics(60)
    cursor = browser.find_element(By.CSS_SELECTOR, "#learning .cursor")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", cursor)
    wide = cursor.rect["width"]
    ActionChains(browser).move_to_element_with_offset(cursor, int(wide / 2) - 2, 0).perform()
    tip = browser.find_element(By.CSS_SELECTOR, "#learning .tip")
    assert tip.is_displayed()
    assert "step 15,360" in tip.text
    assert f"{columns['return_mean'][-1]:.1f}" in tip.text
    assert len(cursor.find_elements(By.TAG_NAME, "b")) == 1
    shoot(browser, "pointer", whole=False)
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()


def test_the_keys_move_through_the_steps_and_their_values_are_said(browser, pages):
    open_page(browser, pages["run"])
    columns = metrics(60)
    cursor = browser.find_element(By.CSS_SELECTOR, "#learning .cursor")
    for _ in range(30):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.switch_to.active_element == cursor:
            break
    assert browser.switch_to.active_element == cursor
    outline = browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", cursor)
    assert outline == "solid"
    for keys, row in (
        ([Keys.HOME], 0),
        ([Keys.ARROW_RIGHT] * 2, 2),
        ([Keys.PAGE_UP], 8),
        ([Keys.ARROW_LEFT], 7),
        ([Keys.END], 59),
    ):
        ActionChains(browser).send_keys(*keys).perform()
        said = cursor.get_attribute("aria-valuetext")
        assert said.startswith(f"step {columns['step'][row]:,}, mean return ")
        value = float(said.split("mean return ")[1].split(" (")[0].replace(",", ""))
        assert value == pytest.approx(columns["return_mean"][row], rel=1e-3)
    shoot(browser, "keys", whole=False)


def test_a_group_can_be_hidden_and_the_table_opened(browser, pages):
    open_page(browser, pages["groups"])
    figure = browser.find_element(By.CSS_SELECTOR, "#learning .chart")
    buttons = figure.find_elements(By.CSS_SELECTOR, ".legend button")
    assert [button.text for button in buttons] == [
        f"learning_rate={x}" for x in (0.001, 0.003, 0.01)
    ]
    curve = figure.find_element(By.CSS_SELECTOR, '[data-curve="1"]')
    buttons[1].click()
    assert not curve.is_displayed()
    assert buttons[1].get_attribute("aria-pressed") == "false"
    said = figure.find_element(By.CSS_SELECTOR, ".cursor").get_attribute("aria-valuetext")
    assert "learning_rate=0.003" not in said
    buttons[1].click()
    assert curve.is_displayed()
    table = figure.find_element(By.TAG_NAME, "table")
    assert not table.is_displayed()
    figure.find_element(By.TAG_NAME, "summary").click()
    assert table.is_displayed()


def test_the_navigation_leads_to_every_section(browser, pages):
    open_page(browser, pages["run"])
    links = browser.find_elements(By.CSS_SELECTOR, "nav a")
    assert len(links) == 7
    for link in links:
        link.click()
        ident = link.get_attribute("href").partition("#")[2]
        top, high = browser.execute_script(
            "const section = document.getElementById(arguments[0]);"
            "return [section.getBoundingClientRect().top, innerHeight]",
            ident,
        )
        assert -1 <= top < high


def test_a_video_can_be_stopped(browser, pages):
    open_page(browser, pages["run"])
    figure = browser.find_element(By.CSS_SELECTOR, ".video")
    button = figure.find_element(By.TAG_NAME, "button")
    image, still = (
        figure.find_element(By.TAG_NAME, "img"),
        figure.find_element(By.TAG_NAME, "canvas"),
    )
    assert image.is_displayed()
    button.click()
    assert (image.is_displayed(), still.is_displayed(), button.text) == (False, True, "Play")
    colour = browser.execute_script(
        "return [...arguments[0].getContext('2d').getImageData(5, 5, 1, 1).data]", still
    )
    assert colour[3] == 255
    button.click()
    assert (image.is_displayed(), button.text) == (True, "Pause")
