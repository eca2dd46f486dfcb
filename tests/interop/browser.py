"""A Chromium of the distribution, driven by its DevTools protocol: one page, and what it said."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from websockets.sync.client import ClientConnection, connect

DEADLINE_SECONDS: Final = 120.0
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS: Final = (
    *("--headless=new", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--remote-debugging-port=0", "--hide-scrollbars"),
)
_FIELDS: Final = "input, select, textarea"
_FIND: Final = """
const button = (name) => [...document.querySelectorAll('button')].find(
  (each) => (each.getAttribute('aria-label') ?? each.textContent) === name && !each.disabled);
const form = (name) => document.querySelector(`form[aria-label="${name}"]`);
const press = (it) => { it?.click(); return !!it; };
const submit = (it) => {
  const by = it.querySelector('button.main:enabled');
  if (by) it.requestSubmit(by);
  return !!by;
};
const fill = (field, value) => {
  const kind = Object.getPrototypeOf(field);
  Object.getOwnPropertyDescriptor(kind, 'value').set.call(field, value);
  field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
  return true;
};
"""


def chromium() -> str | None:
    """Return the path of a Chromium; None: there is none on this machine."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One Chromium with one page; whatever the page complained of is in `complaints`."""

    def __init__(self, program: str, data: Path) -> None:
        command = [program, *_OPTIONS, f"--user-data-dir={data}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # the sandbox does not start as root
        self._data = data
        self._log = data.parent / f"{data.name}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._open = ExitStack()
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        try:
            self._socket = self._attach()
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._end()  # nobody leaves a context that was not entered
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._open.close()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)

    def _attach(self) -> ClientConnection:
        port_file = self._data / "DevToolsActivePort"
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (port_file.exists() and len(port_file.read_text().split()) == 2):
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "Chromium never opened its port"
            time.sleep(0.05)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
            pages = [each for each in json.load(answer) if each["type"] == "page"]
        address = pages[0]["webSocketDebuggerUrl"]
        # A page that says more than is read holds the answers to pings back: there are none.
        opened = connect(address, max_size=None, max_queue=None, ping_interval=None, proxy=None)
        return self._open.enter_context(opened)

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Order something of the page, and return what it answers."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(timeout=DEADLINE_SECONDS))
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                found: dict[str, Any] = said["result"]
                return found
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        given = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")
            case _:
                pass

    def ask(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate",
            expression=f"(async () => {{ {_FIND}; return ({script}); }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.ask(f"!!({script})"):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.text()}"
            time.sleep(0.05)

    def text(self) -> str:
        """Return what people read on the page."""
        return str(self.ask("document.body.innerText"))

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def fill(self, form: str, **values: str) -> None:
        """Fill a form's fields by the words at them (spaces are underscores), and submit it."""
        self.until(f"form({json.dumps(form)})")
        for name, value in values.items():
            words = json.dumps(name.replace("_", " "))
            script = (
                f"fill([...form({json.dumps(form)}).querySelectorAll('label')].find((each) => "
                f"each.innerText.trim().startsWith({words})).querySelector('{_FIELDS}'),"
                f" {json.dumps(value)})"
            )
            self.ask(script)
        self.until(f"submit(form({json.dumps(form)}))")

    def press(self, name: str) -> None:
        """Press a button by its name, as soon as it is there."""
        self.until(f"press(button({json.dumps(name)}))")

    def picture(self, place: Path, *, width: int = 1280, height: int = 900) -> None:
        """Write down how the page looks at a width."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(base64.b64decode(shot["data"]))
