"""The page at `/`, in a real browser without a screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import PROBLEM, WAIT, Running, Start

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no Chromium with its driver is installed")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


def wait(browser: Any, condition: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT, poll_frequency=0.05).until(condition)


def text(browser: Any, name: str) -> str:
    return str(browser.find_element("id", name).get_property("textContent"))


def open_page(browser: Any, served: Running) -> None:
    browser.get(served.url)
    wait(browser, lambda b: b.find_elements("css selector", "#model option"))


def type_problem(browser: Any, keys: str, seed: str = "7") -> None:
    from selenium.webdriver.common.keys import Keys

    problem = browser.find_element("id", "problem")
    problem.clear()
    problem.send_keys(PROBLEM)
    browser.find_element("id", "seed").clear()
    browser.find_element("id", "seed").send_keys(seed)
    if keys:
        problem.send_keys(Keys.CONTROL, keys)


def test_a_problem_is_solved_from_the_keyboard_and_shown_part_by_part(
    browser: Any, served: Running
) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.set_window_size(1280, 900)
    open_page(browser, served)
    type_problem(browser, Keys.ENTER)
    wait(browser, lambda b: text(b, "status") == "done")
    (choice,) = served.chat("agon")["choices"]
    assert text(browser, "answer") == choice["message"]["content"]
    shown = "\n\n".join(
        (
            f"[draft by a]\n{text(browser, 'draft')}",
            f"[summary passed on]\n{text(browser, 'summary')}",
            f"[challenge by b]\n{text(browser, 'challenge')}",
        )
    )
    assert shown == choice["message"]["reasoning"]
    assert text(browser, "draft-who") == "by a"
    assert "tokens read" in text(browser, "costs")
    draft, summary, challenge = (
        browser.find_element("id", name).rect for name in ("draft", "summary", "challenge")
    )
    assert draft["x"] < summary["x"] < challenge["x"]
    assert draft["y"] == summary["y"] == challenge["y"]


def test_writing_is_stopped_by_the_button_and_by_escape(browser: Any, serve: Start) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    running = serve(slots=1)
    open_page(browser, running)
    for stop in (
        lambda: browser.find_element("id", "stop").click(),
        lambda: ActionChains(browser).send_keys(Keys.ESCAPE).perform(),
    ):
        with held(running):
            type_problem(browser, "")
            browser.find_element("id", "go").click()
            wait(browser, lambda b: b.find_element("id", "stop").is_enabled())
            stop()
            wait(browser, lambda b: text(b, "status") == "stopped")
        wait(browser, lambda _b: running.idle)


class held:
    """Nothing gets a slot inside."""

    def __init__(self, running: Running) -> None:
        self._engine = running.service.backend.scheduler.engine  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self._slots, self._engine.slots = self._engine.slots, 0

    def __exit__(self, *_: object) -> None:
        self._engine.slots = self._slots


def test_parts_can_be_copied(browser: Any, served: Running) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(browser, served)
    browser.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": served.url},
    )
    type_problem(browser, Keys.ENTER)
    wait(browser, lambda b: text(b, "status") == "done")
    button = browser.find_element("css selector", "[data-from=draft]")
    button.click()
    wait(browser, lambda _b: button.text in ("Copied", "Selected"))
    script = "return navigator.clipboard.readText()"
    assert browser.execute_script(script) == text(browser, "draft")


def test_errors_are_shown_in_words(browser: Any, served: Running) -> None:
    open_page(browser, served)
    browser.find_element("id", "problem").send_keys("What is 2 + 2?")
    browser.find_element("id", "go").click()
    wait(browser, lambda b: "make 22 from" in text(b, "status"))
    assert "bad" in browser.find_element("id", "status").get_attribute("class")


def test_a_key_is_asked_for_where_the_server_wants_one(browser: Any, serve: Start) -> None:
    from selenium.webdriver.common.keys import Keys

    running = serve(api_key="secret")
    browser.get(running.url)
    wait(browser, lambda b: b.find_element("id", "key").is_displayed())
    browser.find_element("id", "key").send_keys("secret", Keys.TAB)
    wait(browser, lambda b: b.find_elements("css selector", "#model option"))
    type_problem(browser, Keys.ENTER)
    wait(browser, lambda b: text(b, "status") == "done")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_screen(browser: Any, served: Running, width: int) -> None:
    from selenium.webdriver.common.keys import Keys

    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    open_page(browser, served)
    type_problem(browser, Keys.ENTER)
    wait(browser, lambda b: text(b, "status") == "done")
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    needed, there = browser.execute_script(script)
    assert there == width
    assert needed <= there
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_page_loads_nothing_from_elsewhere_and_breaks_none_of_its_own_rules(
    browser: Any, served: Running
) -> None:
    import json

    browser.get_log("browser")
    browser.get_log("performance")
    open_page(browser, served)
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert len(asked) >= 4
    assert all(url.startswith((served.url, "data:,")) for url in asked)
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    headers = httpx.get(served.url).headers
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_only_the_pages_own_files_are_delivered(served: Running) -> None:
    assert httpx.get(f"{served.url}/page/page.js").status_code == 200
    for name in ("other.js", "..%2fapp.py", "%2e%2e/app.py"):
        assert httpx.get(f"{served.url}/page/{name}").status_code == 404
    page = Path(__file__).parents[2] / "src" / "agon" / "serving" / "page"
    assert "http://" not in (page / "index.html").read_text()
