#!/usr/bin/env -S /usr/bin/python3 -B
"""The page of `memctl page`, and that of `memctl report`, in headless Chromium: no error on the console, nothing from elsewhere, numbers that are the API's.

usage: page_browser_test.py BUILD_FOLDER [PICTURES_FOLDER]

PICTURES_FOLDER is given screenshots. Needs chromium and html5lib (scripts/setup --browser --tests).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import page_looks
from chromium import Chromium
from page_server import PageServer

BUILD = sys.argv[1]
PICTURES = sys.argv[2] if len(sys.argv) > 2 else ""
PROGRAM = shutil.which("chromium")
# What each <data> element of the page is, as [{"is": ..., "value": ..., "text": ...}].
SHOWN = "[...document.querySelectorAll('[data-is]')].map(e => ({is: e.dataset.is, value: Number(e.value), text: e.textContent}))"
STRIPES = "[...document.querySelectorAll('.map .stripe')]"
PAINTED = STRIPES + ".flatMap(stripe => [...stripe.querySelectorAll('rect')]).map(rect => getComputedStyle(rect).fill).join()"


class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if PROGRAM is None:
            raise RuntimeError("there is no chromium: scripts/setup --browser installs it")
        cls.page = PageServer(os.path.join(BUILD, "bin"))
        cls.addClassCleanup(cls.page.close)
        cls.browser = Chromium(PROGRAM)
        cls.addClassCleanup(cls.browser.close)
        cls.trainer = None

    @classmethod
    def tearDownClass(cls):
        if cls.trainer:
            cls.trainer.kill()
            cls.trainer.wait(60)
            cls.trainer.stdout.close()

    def photograph(self, name):
        if PICTURES:
            os.makedirs(PICTURES, exist_ok=True)
            self.browser.screenshot(os.path.join(PICTURES, name + ".png"))

    def start_job(self):
        words = ["--socket-dir", self.page.folder.name, "--name", "gpt", "--steps", "40", "--chunks", "24", "--elements", "16384", "--pause-ms", "5", "--stay"]
        type(self).trainer = subprocess.Popen([os.path.join(BUILD, "tests", "thin_trainer"), *words], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.assertIn("stays", self.trainer.stdout.readline())

    def shown(self):
        return {each["is"]: each for each in self.browser.evaluate(SHOWN)}

    def check_numbers(self):
        """The job is at rest: what the page shows is what the API says, exactly."""
        job, status, quotas = self.page.report("jobs")["jobs"][0], self.page.report("status"), self.page.report("quotas")
        seen = self.page.report("residency")["jobs"][0]
        self.browser.wait_for(f"tidepool.look.jobs.jobs.length === 1 && tidepool.look.jobs.jobs[0].version === {job['version']} && tidepool.looks > 3")
        expected = {"pool": status["pool"]["bytes_used"], "pool-limit": status["pool"]["bytes"], "rcache": status["rcache"]["bytes_used"], "rcache-limit": status["rcache"]["bytes_limit"],
                    "job-step": job["version"], "job-ranks": job["ranks_attached"], "job-pool": job["pool_bytes"], "job-rcache": job["rcache_bytes"], "job-limit": job["quota"]["limit_bytes"] or status["pool"]["bytes"],
                    "job-seconds": job["step_seconds"], "held-0": seen["rows"][0]["chunks_held"], "account-used": quotas["accounts"][0]["bytes_used"]}
        shown = self.shown()
        self.assertEqual({name: shown[name]["value"] for name in expected}, expected)
        for name in ("pool", "pool-limit", "job-pool"):
            self.assertIn(shown[name]["text"], self.page.memctl("ps") + self.page.memctl("status"), "as memctl writes it")
        self.assertEqual(shown["state"]["text"], "ready")
        self.assertEqual(self.browser.evaluate(STRIPES + ".length"), len(seen["rows"]))
        letters = {letter: sum(count for kind, count in seen["rows"][-1]["runs"] if kind == letter) for letter, _ in seen["rows"][-1]["runs"]}
        said = self.browser.evaluate(STRIPES + ".at(-1).getAttribute('aria-label')")
        self.assertEqual(said, ", ".join(f"{letter} {letters[letter]}" for letter in sorted(letters)))

    def check_report(self):
        """A report on the job at rest, opened as a file: no script, nothing from elsewhere, the job's numbers as memctl writes them."""
        path = os.path.join(self.page.folder.name, "run.html")
        self.page.memctl("report", path, "--for", "1s", "--metrics", self.metrics_file())
        self.browser.call("Page.navigate", url="file://" + path)
        self.browser.wait_for("location.protocol === 'file:' && document.querySelectorAll('table tr').length === 2 && document.readyState === 'complete'")
        name, state, ranks, steps, pool, _, rcaches = self.browser.evaluate("[...document.querySelectorAll('table tr:last-child td')].map(cell => cell.textContent)")
        job, ps = self.page.report("jobs")["jobs"][0], self.page.memctl("ps")
        self.assertEqual((name, state, ranks, steps), ("gpt", job["state"], "1/1", str(job["version"])))
        for text in (pool, rcaches):
            self.assertIn(text, ps)
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('svg rect').length"), 4)
        page_looks.check(self, self.browser, "report")
        with open(path, encoding="utf-8") as file:
            page_looks.check_html(self, file.read())
        asked = self.browser.requests[self.browser.requests.index("file://" + path):]
        self.assertEqual([url for url in asked if not url.startswith("data:")], ["file://" + path])
        self.photograph("report")

    def metrics_file(self):
        """What a trainer might have written of a hundred steps."""
        path = os.path.join(self.page.folder.name, "metrics.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for step in range(1, 101):
                held_out = {"val_loss": 5 / step ** 0.3} if step % 20 == 0 else {}
                print(json.dumps({"step": step, "loss": 5 / step ** 0.3 + 0.2 * (step % 3), **held_out, "tokens_per_s": 900 + 10 * (step % 7), "seconds": 0.2 + 0.01 * (step % 9), "waited_s": 0.01, "hits": 16,
                                  "ahead": 2, "misses": 2, "prefetches": 2, "prefetches_late": int(step % 30 == 0), "bytes_h2d": 4096, "bytes_h2d_theory": 3072}), file=file)
        return path

    def check_residency(self):
        """`residency -o html` in a page of its own, and `-o svg` in an image of three widths: as wide as its frame, and nothing of it covers anything."""
        for form in ("html", "svg"):
            path = os.path.join(self.page.folder.name, "residency." + form)
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.page.memctl("residency", "-o", form))
            self.browser.call("Page.navigate", url="file://" + path)
            self.browser.wait_for(f"location.pathname.endsWith('.{form}') && document.readyState === 'complete'")
            if form == "html":
                page_looks.check(self, self.browser, "residency")
                with open(path, encoding="utf-8") as file:
                    page_looks.check_html(self, file.read())
                continue
            self.check_svg()
            self.browser.evaluate("document.documentElement.setAttribute('width', 960)")
            self.photograph("residency")

    def check_svg(self):
        """The image that is open, at three widths: no word covers another, and none is cut."""
        for width in page_looks.WIDTHS:
            self.browser.call("Emulation.setDeviceMetricsOverride", width=width, height=1400, deviceScaleFactor=1, mobile=False)
            self.browser.evaluate(f"document.documentElement.setAttribute('width', {width})")
            texts = self.browser.evaluate(page_looks.TEXTS.replace("document.body", "document.documentElement"))
            self.assertGreater(len(texts), 10)
            self.assertEqual(page_looks.overlaps(texts), [], width)
            self.assertEqual([text for text in texts if text[1] < 0 or text[3] > width], [], width)
        self.browser.call("Emulation.setDeviceMetricsOverride", width=1240, height=1400, deviceScaleFactor=1, mobile=False)

    def check_timeline(self):
        """The picture of a planned pipeline, light and dark: as above, and each lane's work lies in its frame."""
        trainer = os.path.join(BUILD, "bin", "trainer")
        if not os.path.exists(trainer):
            return  # a build without LibTorch
        path, machine = os.path.join(self.page.folder.name, "timeline.svg"), os.path.join(self.page.folder.name, "machine.json")
        with open(machine, "w", encoding="utf-8") as file:
            json.dump({"origin": "an example", "root_complexes": [{"gpus": 2, "gb_per_s": 13.1}] * 2, "gpu_memory": "24GiB", "tflops": 35}, file)
        plan = ["estimate", "--preset", "gpt2-4b", "--dtype", "bf16", "--batch", "1", "--pipeline", "auto", "--accumulate", "4", "--topology", machine, "--timeline", path]
        subprocess.run([trainer, *plan], check=True, stdout=subprocess.DEVNULL, timeout=120, stdin=subprocess.DEVNULL)
        self.browser.call("Page.navigate", url="file://" + path)
        self.browser.wait_for("location.pathname.endsWith('timeline.svg') && document.readyState === 'complete'")
        self.check_svg()
        outside = """(() => {
          const all = kind => [...document.querySelectorAll(kind)].filter(each => !each.closest('.swatch')).map(each => each.getBoundingClientRect()), lanes = all('rect.ink-faint');
          const inside = box => lanes.some(lane => box.left >= lane.left - 1 && box.right <= lane.right + 1 && box.top >= lane.top - 1 && box.bottom <= lane.bottom + 1);
          return [lanes.length, all('rect.ink-coming, rect.ink-complete, rect.ink-nvme, rect.ink-held, rect.ink-updating').filter(box => !inside(box)).length];
        })()"""
        for width in page_looks.WIDTHS:
            self.browser.evaluate(f"document.documentElement.setAttribute('width', {width})")
            self.assertEqual(self.browser.evaluate(outside), [8, 0], f"4 GPUs and 4 links, and what they do lies in them at {width}")
        self.browser.evaluate("document.documentElement.setAttribute('width', 420)")
        self.photograph("timeline")

    def check_plan(self):
        """The picture of a plan of the rCache: as above."""
        trainer, path = os.path.join(BUILD, "bin", "trainer"), os.path.join(self.page.folder.name, "plan.svg")
        if not os.path.exists(trainer):
            return
        subprocess.run([trainer, "estimate", "--preset", "gpt2-4b", "--dtype", "bf16", "--plan", "auto", "--rcache", "4GiB", "--svg", path], check=True, stdout=subprocess.DEVNULL, timeout=120, stdin=subprocess.DEVNULL)
        self.browser.call("Page.navigate", url="file://" + path)
        self.browser.wait_for("location.pathname.endsWith('plan.svg') && document.readyState === 'complete'")
        self.check_svg()

    def test_from_an_empty_server_to_one_that_is_gone(self):
        browser = self.browser
        browser.call("Page.navigate", url=self.page.url)
        browser.wait_for("window.tidepool?.looks > 1")
        self.assertIn(f"trainer run --socket-dir {self.page.folder.name}", browser.evaluate("document.querySelector('#jobs').textContent"))
        self.photograph("empty")
        self.start_job()
        self.check_numbers()
        self.assertEqual(browser.evaluate("document.querySelector('article h2').textContent"), "gpt")
        self.photograph("light")
        browser.evaluate(f"void (window.light = {PAINTED})")
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        browser.wait_for(f"{PAINTED} !== light")
        self.photograph("dark")
        page_looks.check(self, browser, "page, dark")
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        page_looks.check(self, browser, "page")
        page_looks.check_html(self, self.page.ask("/")[2])
        page_looks.check_html(self, "<!DOCTYPE html>" + browser.evaluate("document.documentElement.outerHTML"))
        self.assertEqual(browser.complaints, [])
        self.assertEqual({url.split("#")[0].split("/")[2] for url in browser.requests if not url.startswith("data:")}, {f"127.0.0.1:{self.page.port}"})
        self.check_report()
        self.check_residency()
        self.check_timeline()
        self.check_plan()
        browser.call("Page.navigate", url=self.page.url)
        browser.wait_for("window.tidepool?.looks > 1")
        self.page.server.send_signal(signal.SIGKILL)
        browser.wait_for("tidepool.problem === 'memserver does not answer'")
        self.assertIn("memserver run", browser.evaluate("document.querySelector('#banner').textContent"))
        self.assertTrue(browser.evaluate("document.querySelector('#banner').checkVisibility()"))
        self.assertEqual(self.shown()["state"]["text"], "no answer")
        self.photograph("gone")
        self.assertEqual(browser.complaints, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
