"""A trace of `trainer run --trace` in Perfetto's own trace processor: it takes every slice and every flow, and has nothing to complain about.

usage: trace_test.py BIN_FOLDER; needs scripts/setup --tests
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
import unittest

import trace_processor

BIN = os.path.abspath(sys.argv.pop())
LIMIT_S = 120
NAMED = """select flow.slice_out, flow.slice_in, a.name as from_name, b.name as to_name, a.ts as from_ts, b.ts + b.dur as to_end,
  at.name as from_lane, bt.name as to_lane, ap.name as from_process, bp.name as to_process from flow
  join slice a on a.id = flow.slice_out join slice b on b.id = flow.slice_in
  join thread_track att on att.id = a.track_id join thread_track btt on btt.id = b.track_id
  join thread at using (utid) join thread bt on bt.utid = btt.utid
  join process ap on ap.upid = at.upid join process bp on bp.upid = bt.upid"""


def slice_of(**more):
    return {"ph": "X", "pid": 1, "tid": 1, "name": "a", "cat": "c", **more}


class Traces(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.compiled = trace_processor.Compiled()

    def opened(self, trace):
        return trace_processor.TraceProcessor(self.compiled, trace if isinstance(trace, bytes) else json.dumps(trace).encode())

    def traced_run(self, folder):
        """The trace of the last step of a run whose states lie on NVMe."""
        sockets, drive, path = (os.path.join(folder, name) for name in ("s", "drive", "trace.json"))
        os.mkdir(drive, 0o700)
        words = ["run", "--socket-dir", sockets, "--pool", "64MiB", "--rcache-limit", "64MiB", "--keeper", "none", "--measure-rates", "off", "--nvme", drive + ":64MiB", "--states-on", "nvme"]
        with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
            server = subprocess.Popen([os.path.join(BIN, "memserver"), *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                subprocess.run([os.path.join(BIN, "memctl"), "-s", sockets, "wait-ready"], check=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
                run = ["run", "--socket-dir", sockets, "--preset", "tiny", "--steps", "4", "--eval-every", "0", "--rcache", "60%", "--out", os.path.join(folder, "out"), "--trace", path]
                done = subprocess.run([os.path.join(BIN, "trainer"), *run], capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
                log.seek(0)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr + log.read())
            finally:
                server.kill()
                server.wait(LIMIT_S)
        with open(path, "rb") as file:
            return file.read()

    def test_a_runs_trace_is_taken_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = self.traced_run(folder)
        events = collections.Counter(event["ph"] for event in json.loads(trace)["traceEvents"])
        opened = self.opened(trace)
        self.assertEqual(opened.complaints(), [])
        self.assertEqual(opened.query("select count(*) as n from slice"), [{"n": events["X"]}])
        self.assertEqual({row["name"] for row in opened.query("select name from process where name is not null")}, {"rank 0, step 4", "memserver"})

        # Forward and backward, layers in them, operators in those.
        lanes = {row["name"]: row for row in opened.query("select thread.name, max(depth) as depth, count(*) as n from slice join thread_track t on t.id = track_id join thread using (utid) group by utid")}
        self.assertGreaterEqual(lanes["layers and operators"]["depth"], 2)
        for lane in ("compute", "H2D", "D2H", "fetches of rank 0", "gradients of rank 0", "worker 0"):
            self.assertGreater(lanes[lane]["n"], 0, lane)
        # A rank that sees the seal early sees the writes behind the step before; one that sees it late, the reads ahead of this one.
        self.assertTrue(any(lane.endswith("of NVMe directory 0") for lane in lanes), lanes)

        flows = opened.query(NAMED)
        self.assertEqual(len(flows), events["s"], "every arrow has both of its ends")
        kinds = collections.Counter((flow["from_lane"].split(" (")[0], flow["to_lane"].split(" (")[0]) for flow in flows)
        for kind in (("H2D", "layers and operators"), ("layers and operators", "D2H")):
            self.assertGreater(kinds[kind], 0, kinds)
        for flow in flows:
            self.assertLessEqual(flow["from_ts"], flow["to_end"], flow)

    def test_the_processor_finds_what_is_wrong(self):
        self.assertEqual(self.opened({"traceEvents": [slice_of(ts=0, dur=10), slice_of(ts=2, dur=3)]}).complaints(), [])
        overlapping = self.opened({"traceEvents": [slice_of(ts=0, dur=10), slice_of(ts=5, dur=10)]})
        self.assertEqual([row["name"] for row in overlapping.complaints()], ["slice_drop_overlapping_complete_event"])
        lost = self.opened({"traceEvents": [slice_of(ts=0, dur=10), {"ph": "s", "pid": 1, "tid": 2, "ts": 5, "id": "0x1", "name": "f", "cat": "c"}]})
        self.assertNotEqual(lost.complaints(), [])
        with self.assertRaises(ValueError):
            self.opened(b'{"traceEvents":[{"ph":"X","pid":1')


if __name__ == "__main__":
    unittest.main()
