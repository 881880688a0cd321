"""A headless Chromium at the end of two pipes (its debugging protocol: JSON, ended by a zero byte), for tests of web pages."""

import base64
import json
import os
import select
import subprocess
import tempfile
import time


class Chromium:
    """One tab. `complaints` collects what its console shows as an error or warning, `requests` every address that was asked for."""

    def __init__(self, program, width=1240, height=1400):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()

        def give_pipes():
            # What is at 3 and 4 may be one of the ends themselves: first out of the way.
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-extensions",
                 "--no-proxy-server", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", f"--window-size={width},{height}", "about:blank"]
        self.process = subprocess.Popen(words, close_fds=False, preexec_fn=give_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.complaints, self.requests, self.session = 0, b"", [], [], None
        target = next(each["targetId"] for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setScrollbarsHidden", hidden=True)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.next_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def next_message(self):
        while b"\0" not in self.rest:
            if not select.select([self.read_end], [], [], 60)[0]:
                raise TimeoutError("chromium does not answer")
            read = os.read(self.read_end, 1 << 16)
            if not read:
                raise RuntimeError("chromium has ended")
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def note(self, event):
        what, about = event.get("method"), event.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(about["exceptionDetails"]))
        elif what == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(about["args"]))
        elif what == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(about["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} did not become true; the page says: {self.evaluate('document.body.innerText')}")
            time.sleep(0.05)

    def picture(self, beyond=False):
        """What is shown, as a PNG in base64; `beyond`: what a reader scrolls to as well."""
        return self.call("Page.captureScreenshot", format="png", captureBeyondViewport=beyond)["data"]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.picture(beyond=True)))

    def close(self):
        self.process.kill()
        self.process.wait(60)
        os.close(self.read_end)
        os.close(self.write_end)
        self.folder.cleanup()
