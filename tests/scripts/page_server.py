"""A memserver of its own with `memctl page` before it, for tests of the page."""

import json
import os
import subprocess
import tempfile
import urllib.parse
import http.client


class PageServer:
    """Both processes, in a directory that goes with them."""

    def __init__(self, bin_folder, pool="64MiB", rcache="16MiB"):
        self.pool, self.rcache = pool, rcache
        self.bin = os.path.abspath(bin_folder)
        self.folder = tempfile.TemporaryDirectory()
        self.log = open(os.path.join(self.folder.name, "log"), "w", encoding="utf-8")
        self.server = None
        self.start_memserver()
        self.page = subprocess.Popen([self.program("memctl"), "-s", self.folder.name, "page", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=self.log, text=True, stdin=subprocess.DEVNULL)
        self.url = self.page.stdout.readline().strip()
        parsed = urllib.parse.urlsplit(self.url)
        self.port, self.key = parsed.port, parsed.fragment

    def program(self, name):
        return os.path.join(self.bin, name)

    def start_memserver(self):
        self.server = subprocess.Popen([self.program("memserver"), "run", "--socket-dir", self.folder.name, "--pool", self.pool, "--rcache-limit", self.rcache, "--keeper", "none", "--adam-threads", "1"],
                                       stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        self.memctl("wait-ready")

    def end_memserver(self):
        self.server.terminate()
        self.server.wait(60)

    def memctl(self, *words):
        return subprocess.run([self.program("memctl"), "-s", self.folder.name, *words], check=True, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL).stdout

    def report(self, name):
        return json.loads(self.memctl("api", "GET", "/v1/" + name))

    def ask(self, path, method="GET", body=None, **headers):
        """(status, headers, text) of one request; headers are given as Host="..."."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{self.port}", **headers}.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def stream(self, lines):
        """The first looks of the stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/stream", headers={"Host": f"127.0.0.1:{self.port}", "Authorization": "Bearer " + self.key})
        answer = connection.getresponse()
        looks = [json.loads(answer.readline()) for _ in range(lines)]
        connection.close()
        return answer.headers, looks

    def look(self):
        status, _, text = self.ask("/look", Authorization="Bearer " + self.key)
        return status, json.loads(text)

    def close(self):
        for process in (self.page, self.server):
            process.kill()
            process.wait(60)
        self.page.stdout.close()
        self.log.close()
        self.folder.cleanup()
