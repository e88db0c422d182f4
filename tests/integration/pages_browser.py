"""A real browser: Debian's Chromium, driven by Selenium, with themes, narrow screens and axe-core."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

__all__ = ["CHROMIUM", "DRIVER", "Browser", "open_browser"]

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_AXE = Path(__file__).with_name("data") / "axe-core" / "axe.min.js"
_SECONDS = 30.0
WIDE, NARROW = (1280, 900), (390, 844)


class Browser:
    """One window. `root` is the address of Airflow's UI."""

    def __init__(self, driver: webdriver.Chrome, root: str) -> None:
        self.driver, self.root = driver, root

    def sign_in(self, user: str, password: str | None = None) -> None:
        """Sign in through Airflow's own page. The users of `airflow_pages` need no password here."""
        self.driver.delete_all_cookies()
        self.driver.get(f"{self.root}/auth/login")
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, 'input[type="password"]'))
        self.driver.find_element(By.CSS_SELECTOR, 'input[name="username"]').send_keys(user)
        self.driver.find_element(By.CSS_SELECTOR, 'input[type="password"]').send_keys(password or f"password-of-{user}")
        self.driver.find_element(By.CSS_SELECTOR, 'button[type="submit"]').click()
        self.wait(lambda: "/auth/login" not in self.driver.current_url and self.driver.get_cookie("_token"))

    def open(self, path: str) -> None:
        """Open a page of Waybill."""
        self.driver.get(f"{self.root}/waybill/ui{path}")
        self.wait(lambda: self.driver.find_elements(By.TAG_NAME, "h1"))

    def wait(self, condition: Any, seconds: float = _SECONDS) -> Any:
        """Wait until a condition holds, and return its value."""
        return WebDriverWait(self.driver, seconds, poll_frequency=0.1).until(lambda _: condition())

    @property
    def text(self) -> str:
        return str(self.driver.find_element(By.TAG_NAME, "body").text)

    def all(self, selector: str) -> list[WebElement]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def act(self, action: str, reason: str, *, within: str = "body") -> None:
        """Open the form of an action, give the reason, confirm, and send it."""
        [*_, form] = self.all(f'{within} form[action$="/actions/{action}"]')
        details = form.find_element(By.XPATH, "./ancestor::details")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", details)
        details.find_element(By.TAG_NAME, "summary").click()
        form.find_element(By.NAME, "reason").send_keys(reason)
        for box in form.find_elements(By.CSS_SELECTOR, 'input[type="checkbox"]'):
            box.click()
        form.find_element(By.TAG_NAME, "button").click()
        self.wait(lambda: "/actions/" in self.driver.current_url)

    # --- how it looks ---

    def look(self, *, dark: bool, size: tuple[int, int] = WIDE) -> None:
        """Choose the theme and the size of the screen."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def violations(self) -> list[str]:
        """Return what axe-core finds on the page."""
        self.driver.execute_script(_AXE.read_text())
        found = self.driver.execute_async_script("const done = arguments[0]; axe.run(document).then(done);")
        return [f"{each['id']}: {node['html'][:200]}" for each in found["violations"] for node in each["nodes"]]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        return int(
            self.driver.execute_script(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def cut_texts(self) -> list[str]:
        """Return texts that their own box cuts off, and that cannot be scrolled to."""
        return list(
            self.driver.execute_script(
                """return [...document.querySelectorAll("main *")].filter((each) => {
                    const style = getComputedStyle(each);
                    return each.clientWidth && each.scrollWidth > each.clientWidth + 1 && style.overflowX === "hidden";
                }).map((each) => each.textContent.slice(0, 80))"""
            )
        )

    def screenshot(self, path: Path) -> None:
        """Store a picture of the visible part of the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))


@contextmanager
def open_browser(root: str) -> Iterator[Browser]:
    """Start Chromium without a window on the screen."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    try:
        driver.set_script_timeout(60)
        driver.set_page_load_timeout(90)
        yield Browser(driver, root)
    finally:
        driver.quit()
