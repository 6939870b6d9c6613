"""The page in a real browser: the rounds can be read, nothing is fetched, nothing runs wild."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agon.experiments.matrix import read_matrix
from agon.experiments.spec import Experiment
from agon.report.findings import find
from agon.report.page import render, sections, write_page
from agon.report.rounds import read_rounds
from made_up_results import HOSTILE, write_cells

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = (
    next(filter(None, map(shutil.which, names)), None)
    for names in (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))
)
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="there is no Chromium with its driver"
)
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
CELLS = ["grpo--seed1", "agon--seed1", "agon--seed2", "cooperative--seed1", "hidden-paired--seed1"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, experiment: Experiment) -> str:
    folder = tmp_path_factory.mktemp("page")
    write_cells(folder, experiment, CELLS, HOSTILE)
    found = find(read_matrix([folder], experiment))
    page = render(found, sections(found), read_rounds(found.matrix))
    return write_page(page, folder / "index.html").as_uri()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


@pytest.fixture
def opened(driver: Any, address: str) -> Callable[..., Any]:
    """Opens the page at a size and in a colour scheme; returns the driver."""

    def visit(width: int = 1200, height: int = 900, scheme: str = "light", hash: str = "") -> Any:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get("about:blank")
        for log in ("browser", "performance"):
            driver.get_log(log)
        driver.get(address + hash)
        return driver

    return visit


def one(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def choose(driver: Any, control: str, value: str) -> None:
    one(driver, f"#{control} option[value='{value}']").click()


def shown(driver: Any) -> str:
    return str(one(driver, "#round h3").text)


def count(driver: Any) -> int:
    text = one(driver, "#count").text
    return int(text.split(" of ")[1].replace(",", "")) if " of " in text else 0


def press(driver: Any, keys: str, on: str = "body") -> None:
    one(driver, on).send_keys(keys)


def test_nothing_is_fetched_and_nothing_is_complained_of(opened: Callable[..., Any]) -> None:
    driver = opened()
    time.sleep(0.3)
    requests = [
        message["params"]["request"]["url"]
        for entry in driver.get_log("performance")
        for message in [json.loads(entry["message"])["message"]]
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [
        driver.current_url.split("#")[0]
    ]
    assert driver.get_log("browser") == []


def test_a_hostile_draft_is_shown_and_does_not_run(opened: Callable[..., Any]) -> None:
    driver = opened(hash="#rounds?arm=agon&step=0")
    assert "<img src=x onerror=window.pwned=2>" in one(driver, "#round .text").text
    assert driver.execute_script("return window.pwned") is None
    assert driver.execute_script("return document.images.length") == 0
    assert driver.get_log("browser") == []


def test_even_a_script_in_the_page_would_not_run(opened: Callable[..., Any]) -> None:
    """The content policy is a second wall behind the escaping."""
    driver = opened()
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 3';"
        "document.body.append(s);"
    )
    assert driver.execute_script("return window.pwned") is None
    assert any("Content Security Policy" in entry["message"] for entry in driver.get_log("browser"))


def test_filters_search_and_clear_change_what_is_shown(opened: Callable[..., Any]) -> None:
    driver = opened()
    assert one(driver, "#f-arm").get_attribute("value") == "agon"
    assert count(driver) == 24
    one(driver, "#f-clear").click()
    assert count(driver) == 60
    choose(driver, "f-arm", "grpo")
    assert count(driver) == 12
    assert not driver.find_elements("css selector", "#round section:nth-of-type(2)")
    choose(driver, "f-arm", "")
    seen = 0
    for kind in ("conversion", "regression", "both-right", "both-wrong"):
        choose(driver, "f-kind", kind)
        seen += count(driver)
        assert kind.split("-")[0] in shown(driver)
        outcomes = [e.text for e in driver.find_elements("css selector", ".badge:first-child")]
        expected = {
            "conversion": ["wrong", "right"], "regression": ["right", "wrong"],
            "both-right": ["right", "right"], "both-wrong": ["wrong", "wrong"],
        }  # fmt: skip
        assert outcomes == expected[kind]
    assert seen == 48
    choose(driver, "f-kind", "")
    choose(driver, "f-seed", "2")
    choose(driver, "f-step", "5")
    assert count(driver) == 4
    assert shown(driver).startswith("agon, seed 2, step 5")
    one(driver, "#f-clear").click()
    one(driver, "#f-cut").click()
    assert 0 < count(driver) < 60
    assert "truncated" in one(driver, "#round").text
    one(driver, "#f-clear").click()
    one(driver, "#f-text").send_keys("make 11")
    time.sleep(0.4)
    assert count(driver) == 20
    assert one(driver, "#round mark").text == "make 11"
    one(driver, "#f-text").send_keys(" nowhere")
    time.sleep(0.4)
    assert count(driver) == 0
    assert "No round matches" in one(driver, "#round").text


def test_a_round_stands_side_by_side_with_every_reward_term(opened: Callable[..., Any]) -> None:
    driver = opened(hash="#rounds?arm=cooperative")
    stages = driver.find_elements("css selector", "#round .stage")
    assert [s.find_element("css selector", "h4").text for s in stages] == [
        "Draft", "Summary passed on", "Challenge",
    ]  # fmt: skip
    assert len({stage.rect["y"] for stage in stages}) == 1
    assert "4*7=28" in stages[1].text
    for stage in (stages[0], stages[2]):
        terms = stage.find_element("css selector", ".terms").text
        assert all(name in terms for name in ("correctness", "format", "reward", "advantage"))
    opened(hash="#rounds?arm=hidden-paired")
    assert "did not see a summary" in one(driver, "#round .stage:nth-of-type(2)").text


def test_keys_move_through_the_rounds(opened: Callable[..., Any]) -> None:
    driver = opened()
    first = shown(driver)
    press(driver, "j")
    second = shown(driver)
    assert first != second
    press(driver, "k")
    assert shown(driver) == first
    press(driver, "\ue015", "#list")  # arrow down
    assert shown(driver) == second
    press(driver, "\ue010", "#list")  # end
    assert one(driver, "#count").text == "Round 24 of 24"
    assert not one(driver, "#next").is_enabled()
    press(driver, "\ue013", "#list")  # arrow up
    assert one(driver, "#count").text == "Round 23 of 24"
    one(driver, "#f-text").send_keys("jk")
    time.sleep(0.4)
    assert count(driver) == 0  # letters in the search are letters


def test_the_address_brings_back_what_was_shown(opened: Callable[..., Any]) -> None:
    driver = opened()
    one(driver, "#f-clear").click()
    choose(driver, "f-kind", "conversion")
    one(driver, "#f-text").send_keys("4,7")
    time.sleep(0.4)
    one(driver, "#next").click()
    place, text = one(driver, "#count").text, shown(driver)
    hash = "#" + driver.current_url.split("#")[1]
    opened(hash=hash)
    assert (one(driver, "#count").text, shown(driver)) == (place, text)
    assert one(driver, "#f-kind").get_attribute("value") == "conversion"
    assert one(driver, "#f-text").get_attribute("value") == "4,7"
    opened(hash="#rounds?arm=nobody&step=x")
    assert count(driver) == 60  # what does not exist is not filtered by


def test_the_list_says_to_a_screen_reader_where_it_stands(opened: Callable[..., Any]) -> None:
    driver = opened()
    one(driver, "#list [role=option]:nth-child(3)").click()
    assert one(driver, "#count").text == "Round 3 of 24"
    active = one(driver, "#list").get_attribute("aria-activedescendant")
    assert one(driver, f"#{active}").get_attribute("aria-selected") == "true"
    assert len(driver.find_elements("css selector", "#list [aria-selected=true]")) == 1
    for control in driver.find_elements("css selector", "#filters select, #filters input"):
        assert control.accessible_name
    said = one(driver, "#said")
    assert said.get_attribute("role") == "status"
    assert said.get_attribute("textContent") == f"Round 3 of 24: {shown(driver)}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(opened: Callable[..., Any], scheme: str) -> None:
    driver = opened(360, 740, scheme, "#rounds?arm=agon")
    driver.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert driver.execute_script("return document.documentElement.scrollWidth") == 360
    wide = driver.execute_script(
        "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, svg')"
        " && e.getBoundingClientRect().right > 361 && getComputedStyle(e).position !== 'absolute')"
        ".map((e) => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    stages = driver.find_elements("css selector", "#round .stage")
    assert len({stage.rect["x"] for stage in stages}) == 1
    assert len({stage.rect["y"] for stage in stages}) == 3


CONTRASTS = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
document.querySelectorAll('details').forEach((d) => { d.open = true; });
const found = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || e.matches('script, style, noscript, option') || e.disabled) continue;
  const inside = e.closest('svg');
  const style = getComputedStyle(e);
  const colour = parse(inside ? style.fill : style.color);
  const pair = [luminance(colour), luminance(ground(e))].sort((x, y) => y - x);
  const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
  if (ratio < 4.5) found.push([e.outerHTML.slice(0, 90), ratio]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_in_dark(opened: Callable[..., Any], scheme: str) -> None:
    driver = opened(scheme=scheme, hash="#rounds?arm=agon&q=make")
    assert driver.execute_script(CONTRASTS) == []
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(18, 20, 24)") == (scheme == "dark")
