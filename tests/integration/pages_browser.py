"""A real browser: Debian's Chromium, driven by Selenium, with themes, narrow screens and axe-core."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
_AXE = Path(__file__).with_name("data") / "axe-core" / "axe.min.js"
_SECONDS = 30.0
WIDE, NARROW = (1280, 900), (390, 844)


_LAYOUT = """
const rects = [], faults = [];
const isShown = (each) => each.checkVisibility({visibilityProperty: true}) && each.getBoundingClientRect().right > 0;
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, text = node.textContent.trim();
    if (!text || parent.closest("svg, option, select") || !isShown(parent)) continue;
    let block = parent;
    while (getComputedStyle(block).display.startsWith("inline") && block.parentElement) block = block.parentElement;
    const box = block.getBoundingClientRect(), range = document.createRange();
    range.selectNodeContents(node);
    for (const each of range.getClientRects()) {
        const isWider = each.right > box.right + 1 || each.left < box.left - 1;
        if (isWider) faults.push(`wider than its box: ${text.slice(0, 60)}`);
        rects.push([each, node, text]);
    }
}
for (const each of document.querySelectorAll("main button, main input, main select, main svg, main meter")) {
    if (isShown(each)) rects.push([each.getBoundingClientRect(), each, each.tagName.toLowerCase()]);
}
rects.sort((a, b) => a[0].top - b[0].top);
for (let i = 0; i < rects.length; i++) {
    const [a, first, text] = rects[i];
    for (let j = i + 1; j < rects.length && rects[j][0].top < a.bottom; j++) {
        const [b, second, other] = rects[j];
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        // Lines of one text stand close; a text is within its own button.
        if (first === second || wide < 2 || high < 5 || first.contains(second) || second.contains(first)) continue;
        faults.push(`${text.slice(0, 40)} lies on ${other.slice(0, 40)}`);
    }
}
return [...new Set(faults)];
"""
_PIXELS = """
const [data, done] = arguments, image = new Image();
image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const reader = new FileReader();
    reader.onload = () => done([image.width, image.height, reader.result.split(",")[1]]);
    reader.readAsDataURL(new Blob([context.getImageData(0, 0, image.width, image.height).data]));
};
image.src = "data:image/png;base64," + data;
"""


class Browser:
    """One window. `root` is the address of Airflow's UI."""

    def __init__(self, driver: webdriver.Chrome, root: str) -> None:
        self.driver, self.root = driver, root
        self._logins: dict[str, Any] = {}

    def sign_in(self, user: str, password: str | None = None) -> None:
        """Sign in through Airflow's own page. The users of `airflow_pages` need no password here.

        Who has signed in before gets the cookie of that login.
        """
        self.driver.delete_all_cookies()
        if user in self._logins:
            self.driver.get(f"{self.root}/waybill/ui/static/waybill.css")  # cookies are set on a page of the server
            self.driver.add_cookie(self._logins[user])
            return
        self.driver.get(f"{self.root}/auth/login")
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, 'input[type="password"]'))
        self.driver.find_element(By.CSS_SELECTOR, 'input[name="username"]').send_keys(user)
        self.driver.find_element(By.CSS_SELECTOR, 'input[type="password"]').send_keys(password or f"password-of-{user}")
        self.driver.find_element(By.CSS_SELECTOR, 'button[type="submit"]').click()
        self.wait(lambda: "/auth/login" not in self.driver.current_url and self.driver.get_cookie("_token"))
        self._logins[user] = self.driver.get_cookie("_token")

    def open(self, path: str) -> None:
        """Open a page of Waybill."""
        self.driver.get(f"{self.root}/waybill/ui{path}")
        self.wait(lambda: self.driver.find_elements(By.TAG_NAME, "h1"))

    def wait(self, condition: Any, seconds: float = _SECONDS) -> Any:
        """Wait until a condition holds, and return its value."""
        # A refresh of the page replaces its elements, also while a condition looks at them.
        waiting = WebDriverWait(self.driver, seconds, 0.1, ignored_exceptions=[StaleElementReferenceException])
        return waiting.until(lambda _: condition())

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

    def layout_faults(self) -> list[str]:
        """Return texts that are wider than the box they are in, and texts and controls that lie on each other."""
        return list(self.driver.execute_script(_LAYOUT))

    def full_page(self) -> bytes:
        """Return a picture (PNG) of the whole page, also of what is below the screen."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return base64.b64decode(found["data"])

    def pixels(self, picture: bytes) -> tuple[int, int, bytes]:
        """Return width, height and RGBA of a picture (PNG). The page is left."""
        self.driver.get("about:blank")
        width, height, data = self.driver.execute_async_script(_PIXELS, base64.b64encode(picture).decode())
        return width, height, base64.b64decode(data)


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
