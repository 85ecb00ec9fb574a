"""The demo's page in a real browser: it is seen, in dark and light, wide and narrow, and asks for nothing else."""

import io
import re

import browser
import pytest
from canned import RESULTS, changed
from PIL import Image

from bigbatch.cli import picture, report

# One process, for they share a browser that the first of them may have to fetch.
pytestmark = pytest.mark.xdist_group("browser")
WIDE, NARROW = {"width": 1100, "height": 900}, {"width": 390, "height": 800}
# Whatever is written in a chart lies inside of it, and no two words of it on each other.
CHARTS = """[...document.querySelectorAll("svg.chart")].map(chart => {
  const box = chart.getBoundingClientRect();
  const texts = [...chart.querySelectorAll("text")].map(each => {
    const {left, right, top, bottom} = each.getBoundingClientRect();
    return {left, right, top, bottom, words: each.textContent, kind: each.getAttribute("class")};
  });
  return {left: box.left, right: box.right, top: box.top, bottom: box.bottom, texts};
})"""


@pytest.fixture(scope="module")
def page():
    with browser.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.page(RESULTS), encoding="utf-8")
    return path.as_uri()


def seen(page):
    """The whole page, as it is seen; Pillow comes with matplotlib."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def is_bright(colour):
    return sum(colour) / 3 > 128


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_without_complaints(scheme, page, address):
    page.open(address, scheme=scheme, **WIDE)
    picture_of_it = seen(page)
    assert page.errors == []
    assert picture_of_it.width == 1100
    assert picture_of_it.height > 2000
    assert len(picture_of_it.getcolors(maxcolors=2**24)) > 50
    assert is_bright(picture_of_it.getpixel((5, 5))) == (scheme == "light")


def test_an_error_in_the_console_would_be_seen(page, tmp_path):
    path = tmp_path / "bad.html"
    text = report.page(RESULTS).replace("</main>", '<img src="https://example.com/a.png"></main>')
    path.write_text(text, encoding="utf-8")
    page.open(path.as_uri(), **WIDE)
    assert any("Content Security Policy" in error for error in page.errors)


def test_it_asks_for_nothing_and_runs_nothing(page, address):
    page.open(address, **WIDE)
    assert page.requests == [address]
    assert page.ask("document.scripts.length") == 0


@pytest.mark.parametrize("screen", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits_the_screen(screen, page, address):
    page.open(address, **screen)
    assert page.ask("document.documentElement.scrollWidth") <= screen["width"]


@pytest.mark.parametrize("screen", [WIDE, NARROW], ids=["wide", "narrow"])
def test_axes_are_labelled_and_words_lie_in_the_picture(screen, page, address):
    page.open(address, **screen)
    charts = page.ask(CHARTS)
    axes = [[text["words"] for text in chart["texts"] if "axis" in text["kind"]] for chart in charts]
    assert axes == [
        ["updates of the whole batch", "loss of the batch"],
        ["micro-batch size (samples)", "peak memory (MiB)"],
        ["updates of the whole batch", "distance of the weights (relative)"],
    ]
    for chart in charts:
        for text in chart["texts"]:
            assert text["left"] >= chart["left"] - 1, text
            assert text["right"] <= chart["right"] + 1, text
            assert text["top"] >= chart["top"] - 1, text
            assert text["bottom"] <= chart["bottom"] + 1, text


def test_words_of_a_chart_do_not_lie_on_each_other(page, address):
    page.open(address, **WIDE)
    for chart in page.ask(CHARTS):
        texts = chart["texts"]
        for number, a in enumerate(texts):
            for b in texts[:number]:
                apart = a["right"] <= b["left"] or b["right"] <= a["left"]
                assert apart or a["bottom"] - 4 <= b["top"] or b["bottom"] - 4 <= a["top"], (a, b)


@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_the_loss_curves_lie_on_each_other(kind, page, address):
    page.open(address, **WIDE)
    drawn = page.ask(f"document.querySelector('svg.chart .{kind} polyline').getAttribute('points')")
    assert drawn == page.ask("document.querySelector('svg.chart .ours polyline').getAttribute('points')")
    assert len(drawn.split()) == len(RESULTS.plain.updates)


def test_numbers_can_be_read_without_figures(page, address):
    page.open(address, **WIDE)
    tables = page.ask("[...document.querySelectorAll('table')].map(each => each.textContent)")
    assert len(tables) == 4
    assert "167.0 MiB" in tables[0]
    assert "8.00e-08" in tables[3]
    assert "2.00e-02" in tables[3]


def test_last_words_are_escaped(page, address):
    page.open(address, **WIDE)
    assert page.ask("document.querySelector('pre').textContent") == f"ResourceExhaustedError: {RESULTS.starved.error}"


def test_a_broken_promise_is_on_the_page():
    text = report.page(changed(budget=15 * 2**20))
    assert re.search(r'class="verdict broken">bigbatch needs more than 15 MiB', text)
    assert "Checked by the run" not in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_renders(scheme, page, tmp_path):
    path = tmp_path / "picture.svg"
    path.write_text(picture.draw(RESULTS), encoding="utf-8")
    page.open(path.as_uri(), scheme=scheme, width=850, height=350)
    picture_of_it = seen(page)
    assert (page.errors, page.requests) == ([], [path.as_uri()])
    assert len(picture_of_it.getcolors(maxcolors=2**24)) > 50
    assert is_bright(picture_of_it.getpixel((8, 175))) == (scheme == "light")


def test_no_browser_is_said_in_words(monkeypatch, tmp_path):
    monkeypatch.setattr(browser, "INSTALLED", ("no-such-browser",))
    monkeypatch.setattr(browser, "FOLDER", tmp_path)
    monkeypatch.setattr(browser, "ADDRESS", (tmp_path / "missing.tgz").as_uri())
    with pytest.raises(
        browser.NoBrowser, match=r"need Chromium\. Received: none of no-such-browser on PATH, .*Install"
    ):
        browser.find()
