"""Every Python block of the README and the docs runs; one without imports goes on where the block before it ended."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def scripts(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    joined = []
    for block in blocks:
        if block.startswith(("import ", "from ")):
            joined.append(block)
        else:
            joined[-1] += block
    return joined


SCRIPTS = [
    pytest.param(script, id=f"{page.name}-{number}") for page in PAGES for number, script in enumerate(scripts(page))
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs(script, tmp_path):
    path = tmp_path / "script.py"  # a file, for AutoGraph reads the source of what it converts
    path.write_text(script)
    # Keras says this for every dataset, whatever was passed.
    keras_own = "ignore:`shuffle=True` was passed:UserWarning"
    command = [sys.executable, "-W", "error::UserWarning", "-W", keras_own, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_scripts_to_run():
    assert {"README.md-0", "README.md-1", "exactness.md-0"} <= {script.id for script in SCRIPTS}


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
