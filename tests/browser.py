"""A real browser for tests: Chromium, headless, spoken to through a pipe in the DevTools protocol.

One that is installed is used. If there is none, the one that npm's `@sparticuz/chromium` packs is fetched into
`.browser/` of the repository: it needs no root, no Node and no libraries but those of a bare Debian on x86-64.
"""

import base64
import hashlib
import io
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

INSTALLED = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FOLDER = Path(__file__).parents[1] / ".browser"
VERSION = "153.0.0"
ADDRESS = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{VERSION}.tgz"
# As the registry states it.
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{0}/fonts</dir><cachedir>{0}/cache</cachedir></fontconfig>"""
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe")
# DevTools reads from 3 and writes to 4; neither pipe may be in the way of the other when it is put there.
PUT_AND_RUN = """
import fcntl, os, sys
high = [fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
TIMEOUT = 60


class NoBrowser(Exception):
    """Why there is none, and the way out."""


def find():
    """The command of a browser and the environment that it needs."""
    for name in INSTALLED:
        if path := shutil.which(name):
            return path, {}
    home = FOLDER / VERSION
    if not home.exists():
        _fetch(home)
    return str(home / "chromium"), {
        "LD_LIBRARY_PATH": str(home / "lib"),
        "FONTCONFIG_FILE": str(home / "fonts.conf"),
    }


def _fetch(home):
    try:
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            raise OSError(f"{ADDRESS} is for Linux on x86-64 only")
        with urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as answer:
            packed = answer.read()
        if hashlib.sha512(packed).digest() != base64.b64decode(SHA512):
            raise OSError(f"{ADDRESS} is not what it was")
    except OSError as error:
        raise NoBrowser(
            f"These tests need Chromium. Received: none of {', '.join(INSTALLED)} on PATH, and {error}. "
            "Install one (`apt-get install chromium`), or let this machine reach the npm registry."
        ) from error
    FOLDER.mkdir(exist_ok=True)
    # Whole or not at all, also if two processes fetch it at once.
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        _unpack(packed, Path(folder) / "new", home)
        if not home.exists():
            (Path(folder) / "new").rename(home)


def _unpack(packed, folder, home):
    import brotli

    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        for name in ("chromium.br", "al2023.tar.br", "fonts.tar.br"):
            content = brotli.decompress(package.extractfile(f"package/bin/{name}").read())
            if name == "chromium.br":
                (folder / "chromium").write_bytes(content)
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as part:
                part.extractall(folder)
    (folder / "chromium").chmod(0o755)
    (folder / "fonts.conf").write_text(FONTS.format(home))


class Page:
    """A page that is open. `errors` are what its console said of errors and warnings."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._num_sent, self._session, self._received, self._events = 0, None, b"", []
        self.errors, self.requests = [], []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, address, *, scheme="light", width=1200, height=900):
        """Loads an address as somebody sees it who prefers light or dark, on a screen of that size."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.errors, self.requests = [], []
        self._events.clear()
        self._ask("Page.navigate", url=address)
        while "Page.loadEventFired" not in self._events:
            self._hear()

    def ask(self, script):
        """The value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self):
        """The whole page, as a PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _ask(self, method, **parameters):
        self._num_sent += 1
        message = {"id": self._num_sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._hear()
            if answer.get("id") == self._num_sent:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _hear(self):
        while b"\0" not in self._received:
            assert select.select([self._answers], [], [], TIMEOUT)[0], "the browser does not answer"
            some = os.read(self._answers, 2**16)
            assert some, "the browser has ended"
            self._received += some
        text, self._received = self._received.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event, parameters):
        self._events.append(event)
        if event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"]["text"])
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(str(parameters["args"]))


@contextmanager
def opened():
    """A browser with one empty page; killed in the end."""
    command, environment = find()
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    start = [sys.executable, "-c", PUT_AND_RUN, str(read_commands), str(write_answers)]
    with (
        tempfile.TemporaryDirectory() as profile,
        os.fdopen(write_commands, "wb") as commands,
        os.fdopen(read_answers, "rb", buffering=0),
        subprocess.Popen(
            [*start, command, *OPTIONS, f"--user-data-dir={profile}"],
            env=os.environ | environment | {"HOME": profile},
            pass_fds=(read_commands, write_answers),
        ) as process,
    ):
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Page(commands, read_answers)
        finally:
            process.kill()
