"""Every Python block of the README and the docs runs, each on its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block):
    # Keras says this for every dataset, whatever was passed.
    keras_own = "ignore:`shuffle=True` was passed:UserWarning"
    command = [sys.executable, "-W", "error::UserWarning", "-W", keras_own, "-c", block]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_blocks_to_run():
    assert {"README.md-0", "README.md-1", "exactness.md-0"} <= {block.id for block in BLOCKS}


def test_links_lead_somewhere():
    missing = [
        f"{page.name}: {link}"
        for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not missing


@pytest.mark.parametrize(("page", "lines"), [("README.md", 150), ("CONTRIBUTING.md", 45)])
def test_pages_stay_short(page, lines):
    assert len((ROOT / page).read_text().splitlines()) <= lines
