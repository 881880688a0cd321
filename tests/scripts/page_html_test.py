"""The page of `memctl page`, that of `memctl report` and that of `memctl residency` are HTML: the parser of the standard finds nothing wrong.

usage: page_html_test.py BIN_FOLDER; needs html5lib (scripts/setup --tests)
"""

import os
import subprocess
import sys
import unittest

import page_looks
from page_server import PageServer

BIN = sys.argv.pop()


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = PageServer(BIN)
        cls.addClassCleanup(cls.page.close)

    def file_of(self, *words):
        path = os.path.join(self.page.folder.name, "file.html")
        self.page.memctl(words[0], path, *words[1:])
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_every_page_is_html(self):
        words = ["--socket-dir", self.page.folder.name, "--name", "gpt", "--steps", "3", "--chunks", "300", "--elements", "64", "--stay"]
        trainer = subprocess.Popen([os.path.join(BIN, "..", "tests", "thin_trainer"), *words], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        try:
            self.assertIn("stays", trainer.stdout.readline())
            page_looks.check_html(self, self.page.ask("/")[2])
            page_looks.check_html(self, self.page.memctl("residency", "-o", "html"))
            page_looks.check_html(self, self.page.memctl("residency", "-o", "html", "--by", "job"))
            page_looks.check_html(self, self.file_of("report", "--for", "300ms"))
        finally:
            trainer.kill()
            trainer.wait(60)
            trainer.stdout.close()

    def test_what_memctl_draws_for_the_page_is_html(self):
        pictures = self.page.look()[1]["pictures"]
        drawn = [rate["picture"] for rate in pictures["rates"].values()] + [pictures["key"]]
        page_looks.check_html(self, '<!DOCTYPE html><html lang="en"><head><title>drawn</title></head><body>' + "".join(drawn) + "</body></html>")

    def test_the_check_finds_what_is_wrong(self):
        for wrong in ("<p><div></p>", '<p id="a"></p><p id="a"></p>', "<b><i></b></i>", "&nosuch;"):
            with self.assertRaises(AssertionError):
                page_looks.check_html(self, f'<!DOCTYPE html><html lang="en"><head><title>x</title></head><body>{wrong}</body></html>')


if __name__ == "__main__":
    unittest.main()
