"""The page in a real browser: what it shows, its keys, and that it asks for nothing.

Chromium is the one that `EXECUTIONKIT_BROWSER` names, or `chromium` on the PATH. Without
it these tests are skipped, unless `EXECUTIONKIT_REQUIRE_BROWSER` says that they must run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from executionkit.viewer import write_trace_page
from tests.viewer.traces import event, many, small

MILLISECONDS = 20_000
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-dev-shm-usage"),
)
ROWS = "#rows .row:not([hidden])"

pytestmark = pytest.mark.timeout(90)


def browser() -> str:
    found = os.environ.get("EXECUTIONKIT_BROWSER")
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = found or shutil.which(name)
    try:
        import playwright  # noqa: F401
    except ImportError:
        found = None
    if found is None:
        reason = "no browser here: Debian's chromium, and pip install playwright"
        if os.environ.get("EXECUTIONKIT_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Shown:
    """A page in the browser, and what it complained of or asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.heard: list[str] = []
        page.on("console", lambda item: self.heard.append(f"console: {item.text}"))
        page.on("pageerror", lambda error: self.heard.append(f"error: {error}"))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith("file:"):
            self.heard.append(f"request: {request.url}")

    async def open(self, file: Path) -> None:
        await self.page.goto(file.as_uri(), timeout=MILLISECONDS)
        await self.page.wait_for_selector(
            "html[data-ready]", state="attached", timeout=MILLISECONDS
        )

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def names(self) -> list[str]:
        found: list[str] = await self.page.locator(f"{ROWS} .c-name").all_inner_texts()
        return [" ".join(text.split()) for text in found]

    async def sees(self, script: str) -> None:
        """Wait until `script` is true in the page."""
        await self.page.wait_for_function(f"() => {script}", timeout=MILLISECONDS)

    async def colour(self) -> str:
        script = "getComputedStyle(document.body).backgroundColor"
        found: str = await self.page.evaluate(script)
        return found


@asynccontextmanager
async def shown(file: Path, **settings: Any) -> AsyncIterator[Shown]:
    executable = browser()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=executable, args=list(ARGUMENTS), timeout=MILLISECONDS
        )
        try:
            settings = {"viewport": {"width": 1400, "height": 900}, **settings}
            context = await chromium.new_context(**settings)
            page = Shown(await context.new_page())
            await page.open(file)
            yield page
            assert page.heard == []
        finally:
            await chromium.close()


def made(folder: Path, events: Any, **options: Any) -> Path:
    target = folder / "page.html"
    write_trace_page(events, target, **options)
    return target


@pytest.mark.req("viewer.browser")
async def test_it_shows_the_timeline_and_what_a_row_is_made_of(tmp_path: Path) -> None:
    async with shown(made(tmp_path, small(), title="My run")) as it:
        assert await it.page.title() == "My run · trace"
        names = await it.names()
        assert [name.split(" ")[0] for name in names] == [
            *("react_loop", "small-1", "search", "small-1")
        ]
        assert sum("LLM_RATE_LIMITED" in name for name in names) == 2
        figures = await it.page.inner_text("#figures")
        for text in ("2.00 s", "$0.25", "600 ms", "1 failed attempt"):
            assert text in " ".join(figures.split()), figures
        # Waits and attempts have colours of their own, one for each reason.
        kinds = await it.page.eval_on_selector_all(
            f"{ROWS} .line i, {ROWS} .c-time i",
            "all => all.map(one => getComputedStyle(one).backgroundColor"
            " + getComputedStyle(one).backgroundImage)",
        )
        assert len(set(kinds)) >= 4


@pytest.mark.req("viewer.browser")
async def test_the_keyboard_is_enough(tmp_path: Path) -> None:
    async with shown(made(tmp_path, small())) as it:
        await it.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight")
        await it.sees(f"document.querySelectorAll('{ROWS}').length === 8")
        await it.press("Enter")
        await it.sees("!document.getElementById('detail').hidden")
        detail = await it.page.inner_text("#detail")
        for text in ("search", "permit", "backoff", "cats", "r1"):
            assert text in detail
        await it.press("Escape")
        await it.sees("document.getElementById('detail').hidden")
        await it.press("Home", "n", "Enter")
        assert "LLM_RATE_LIMITED" in await it.page.inner_text("#detail")
        await it.press("Escape", "ArrowLeft", "Home", "ArrowLeft")
        await it.sees(f"document.querySelectorAll('{ROWS}').length === 1")
        await it.press("?")
        assert await it.page.locator("#keys[open]").count() == 1
        await it.press("Escape", "s")
        assert "small-1" in await it.page.inner_text("#summary")
        before = await it.colour()
        await it.press("t")
        assert await it.colour() != before


@pytest.mark.req("viewer.browser")
async def test_search_and_filters_leave_what_was_asked_for(tmp_path: Path) -> None:
    async with shown(made(tmp_path, small())) as it:
        await it.press("/")
        await it.page.keyboard.type("search")
        await it.sees(
            "/^1\\b/.test(document.getElementById('hits').textContent.trim())"
        )
        assert any("search" in name for name in await it.names())
        assert not any("small-1" in name for name in await it.names())
        await it.press("Escape", "e")
        await it.sees(f"document.querySelectorAll('{ROWS}').length > 0")
        names = await it.names()
        assert any("LLM_RATE_LIMITED" in name for name in names)
        assert sum("small-1" in name for name in names) == 1
        await it.press("e", "/")
        await it.page.keyboard.type("no such thing")
        await it.sees("!document.getElementById('none').hidden")


@pytest.mark.req("viewer.browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_light_and_dark_are_legible(tmp_path: Path, scheme: Any) -> None:
    async with shown(made(tmp_path, small()), color_scheme=scheme) as it:
        ratio = await it.page.evaluate(
            """() => {
              const light = text => {
                const [r, g, b] = text.match(/[0-9.]+/g).map(Number).map(v => {
                  v /= 255;
                  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
                });
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              };
              const paper = light(getComputedStyle(document.body).backgroundColor);
              const inks = [...document.querySelectorAll("h1, #when, #rows .c-name, .head span")]
                .map(one => light(getComputedStyle(one).color));
              return Math.min(...inks.map(ink =>
                (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)));
            }"""
        )
        assert ratio >= 4.5  # WCAG 2.2, level AA


@pytest.mark.req("viewer.browser")
async def test_fifty_thousand_events_stay_usable(tmp_path: Path) -> None:
    async with shown(made(tmp_path, many(50_000))) as it:
        # Only the rows that can be seen are there, however many there are.
        assert await it.page.locator("#rows .row").count() < 100
        first = await it.names()
        await it.press("End")
        while await it.names() == first:  # the page paints when it comes to it
            pass
        await it.press("Home")
        while await it.names() != first:
            pass
        await it.press("n", "Enter")
        assert "TOOL_TIMEOUT" in await it.page.inner_text("#detail")
        await it.press("Escape", "/")
        await it.page.keyboard.type("tool3 timeout")
        await it.sees(
            "/^[1-9]/.test(document.getElementById('hits').textContent.trim())"
        )
        assert all("tool3" in n or "react_loop" in n for n in await it.names())


@pytest.mark.req("viewer.alone")
async def test_what_a_trace_holds_is_never_run(tmp_path: Path) -> None:
    attack = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"
    events = [
        event(
            0,
            "tool_call_end",
            attack,
            tool_name=attack,
            error=attack,
            **{attack: attack},
        ),
        event(1, attack, attack, note={"deep": [attack]}),
    ]
    async with shown(made(tmp_path, events, title=attack)) as it:
        await it.press("ArrowDown", "Enter", "s", "s", "/")
        await it.page.keyboard.type("img")
        assert await it.page.title() != "hit"
        assert await it.page.locator("img").count() == 0


@pytest.mark.req("viewer.browser")
@pytest.mark.parametrize("events", [[], small()[:1]], ids=["nothing", "one start"])
@pytest.mark.parametrize("width", [390, 1400])
async def test_little_or_nothing_has_a_page_too(
    tmp_path: Path, events: Any, width: int
) -> None:
    viewport = {"width": width, "height": 700}
    async with shown(made(tmp_path, events), viewport=viewport) as it:
        await it.press("ArrowDown", "Enter", "n", "e", "+", "-", "0", "End", "Home")
        wide = await it.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
