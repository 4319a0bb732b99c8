"""Drives a headless Chromium over the pipes of --remote-debugging-pipe. Needs no port and only Python's
standard library.

    with Browser(program) as browser:
        browser.open(path)
        browser.value("document.title")
"""
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "ArrowUp": 38, "ArrowDown": 40, "Enter": 13, "Escape": 27}
WIDTH, HEIGHT = 1280, 800


def browser_find():
    """The path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class BrowserError(Exception):
    pass


class Browser:
    def __init__(self, program):
        self.program = program
        self.problems = []  # exceptions, and errors and warnings on the console
        self.number, self.rest, self.events = 0, b"", []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="tidepool-browser-")
        to_read, self.to = os.pipe()
        self.back, from_write = os.pipe()

        def pipes():  # the browser reads from 3 and writes to 4
            wanted = os.dup(to_read), os.dup(from_write)
            os.dup2(wanted[0], 3)
            os.dup2(wanted[1], 4)

        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.process = subprocess.Popen(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--mute-audio",
             f"--user-data-dir={self.folder}/profile", f"--window-size={WIDTH},{HEIGHT}", "--remote-debugging-pipe",
             "about:blank"], close_fds=True, pass_fds=(3, 4), preexec_fn=pipes, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        try:
            target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
            self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.page(f"{domain}.enable")
            self.page("Performance.enable",
                timeDomain="threadTicks")  # CPU time of the thread: other load on the machine does not count
            self.size(WIDTH, HEIGHT)
            self.scheme(False)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for end in (self.to, self.back):
            os.close(end)
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the protocol ----

    def send(self, message):
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]

    def receive(self, until):
        while b"\0" not in self.rest:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                raise BrowserError("the browser does not answer")
            more = os.read(self.back, 1 << 20)
            if not more:
                raise BrowserError("the browser has ended: " + open(os.path.join(self.folder, "log"),
                    errors="replace").read()[-800:])
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, wait_s=60, **params):
        self.number += 1
        number, until = self.number, time.monotonic() + wait_s
        self.send({"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})})
        while True:
            message = self.receive(until)
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            self.heard(message)

    def heard(self, message):
        method, params = message.get("method"), message.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])

    def page(self, method, **params):
        return self.call(method, self.session, **params)

    # ---- a user's actions ----

    def scheme(self, dark):
        self.page("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme",
            "value": "dark" if dark else "light"}])

    def size(self, width, height):
        self.page("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, path):
        """Open a page. Returns the seconds until its script and first drawing are done."""
        began = time.monotonic()
        self.events.clear()
        self.page("Page.navigate", url="file://" + os.path.abspath(path))
        self.until("document.readyState === 'complete'", 60)
        return time.monotonic() - began

    def value(self, expression):
        answer = self.page("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def until(self, expression, wait_s=10):
        end = time.monotonic() + wait_s
        while not self.value(expression):
            if time.monotonic() > end:
                raise BrowserError(f"after {wait_s} s still not: {expression}")
            time.sleep(0.02)

    def drawn(self):
        """Wait until the screen shows the effect of the last call."""
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind, x, y, **more):
        self.page("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.drawn()

    def drag(self, x, y, to_x, to_y):
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for part in range(1, 6):
            self.mouse("mouseMoved", x + (to_x - x) * part / 5, y + (to_y - y) * part / 5, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)
        self.drawn()

    def wheel(self, x, y, by, shift=False):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=by, modifiers=8 if shift else 0)
        self.drawn()

    def hover(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.drawn()

    def key(self, key, shift=False):
        text = {} if len(key) > 1 and key != "Enter" else {"text": "\r" if key == "Enter" else key}
        code = KEYS.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
        self.page("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code,
            modifiers=8 if shift else 0, **text)
        self.page("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.drawn()

    def write(self, text):
        self.page("Input.insertText", text=text)
        self.drawn()

    def task_seconds(self):
        """Seconds that the page's main thread has spent in tasks so far."""
        return next(one["value"] for one in self.page("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration")
