import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import quickstart_report  # noqa: E402


def step(number, loss, val_loss=None, theory=100):
    line = {"step": number, "loss": loss, "tokens_per_s": 10.0 * number, "hit_rate": 0.5, "bytes_h2d": 100, "bytes_d2h": 40, "seconds": 2.0,
            "bytes_h2d_theory": theory, "bytes_d2h_theory": 40}
    if val_loss is not None:
        line["val_loss"] = val_loss
    return line


METRICS = [step(0, 5.5, 5.6, theory=0), step(1, 5.5, theory=0), step(2, 4.0), step(3, 3.0, 3.1)]
ESTIMATE = {"params": 1000, "rcache": {"resident_share": 0.1, "fraction": 0.25}, "pool_bytes": 16000, "rcache_limit_bytes": 500}


class Figures(unittest.TestCase):
    def setUp(self):
        self.found = quickstart_report.figures(METRICS, ESTIMATE, 2, ["process 1: memserver"])

    def test_losses_are_the_held_out_ones(self):
        self.assertEqual((self.found["loss_first"], self.found["loss_last"]), (5.6, 3.1))

    def test_steps_before_the_plan_do_not_count_as_theory(self):
        self.assertEqual((self.found["bytes_h2d_per_step"], self.found["bytes_h2d_theory"]), (100, 100))
        self.assertEqual(self.found["steps"], 3)

    def test_leaks_are_counted(self):
        self.assertEqual(self.found["leaks"], 1)

    def test_a_run_that_ended_before_its_first_step(self):
        found = quickstart_report.figures([], {}, 2, [])
        self.assertIsNone(found["loss_first"])
        self.assertEqual(found["bytes_h2d_per_step"], 0)


LICENCE = "The licence grants you rights.\nYou may copy  the work, and give it away under these terms.\n"


class Sample(unittest.TestCase):
    def test_words_of_the_text_are_known_whatever_their_case(self):
        self.assertEqual(quickstart_report.known_words("THE work, you copy!", LICENCE), 1)
        self.assertEqual(quickstart_report.known_words("The wurk you coppy", LICENCE), 0.5)
        self.assertEqual(quickstart_report.known_words("lic", LICENCE), 0, "a part of a word is none")
        self.assertEqual(quickstart_report.known_words(" ... ", LICENCE), 0)

    def test_the_longest_run_is_found_wherever_it_stands(self):
        self.assertEqual(quickstart_report.longest_copy("xx You may\ncopy the work!", LICENCE), " You may copy the work")
        self.assertEqual(quickstart_report.longest_copy("rights", LICENCE), "rights")
        self.assertEqual(quickstart_report.longest_copy("0123", LICENCE), "")
        self.assertEqual(quickstart_report.longest_copy("", LICENCE), "")

    def test_what_is_held_out_is_no_training_text(self):
        with tempfile.TemporaryDirectory() as data:
            for name, text in [("a", "alpha"), ("b", "beta")]:
                with open(os.path.join(data, name), "w", encoding="utf-8") as file:
                    file.write(text)
            plan = f"data      2 text files in '{data}', 5 tokens to train on; held out: '{data}/b', 4 tokens"
            self.assertEqual(quickstart_report.training_text(data, plan), "alpha")
            self.assertEqual(quickstart_report.training_text(data, ""), "alpha\nbeta")
            self.assertEqual(quickstart_report.training_text(data + "/a", "its last 2 tokens are held out, 3 tokens to train on"), "alp")

    def test_a_promise_that_is_broken_is_named(self):
        kept = {"loss_last": 1.9, "words_known": 0.8, "longest_copy": "x" * 39}
        self.assertEqual(quickstart_report.broken_promises(kept), [])
        for key, value, word in [("loss_last", 1.91, "1.91"), ("loss_last", None, "None"), ("loss_last", float("nan"), "nan"), ("words_known", 0.79, "79 %"),
                                 ("longest_copy", "x" * 40, "40 characters")]:
            broken = quickstart_report.broken_promises({**kept, key: value})
            self.assertEqual(len(broken), 1, (key, value))
            self.assertIn(word, broken[0])

    def test_samples_stand_side_by_side(self):
        lines = quickstart_report.columns("\x01ab\n\ncd", "one two three four", width=9)
        self.assertEqual(lines[2:], [".ab        | one two", "cd         | three", "           | four"])


class Picture(unittest.TestCase):
    def test_is_a_drawing_with_one_dot_per_held_out_loss(self):
        drawing = xml.etree.ElementTree.fromstring(quickstart_report.loss_svg(METRICS, "loss"))
        self.assertEqual(len(drawing.findall("{*}circle")), 2)
        self.assertEqual(len(drawing.findall("{*}polyline")), 2)

    def test_ticks_are_round(self):
        self.assertEqual(quickstart_report.nice_ticks(0, 5.88), [0, 2, 4])
        self.assertEqual(quickstart_report.nice_ticks(0, 120), [0, 50, 100])
        self.assertEqual(quickstart_report.nice_ticks(0, 0.4), [0, 0.1, 0.2, 0.3, 0.4])

    def test_nothing_to_draw(self):
        with self.assertRaises(ValueError):
            quickstart_report.loss_svg([], "loss")


class CommandLine(unittest.TestCase):
    def test_writes_plot_figures_and_page(self):
        with tempfile.TemporaryDirectory() as out:
            with open(os.path.join(out, "metrics.jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in METRICS)
            with open(os.path.join(out, "estimate.json"), "w", encoding="utf-8") as file:
                json.dump(ESTIMATE, file)
            figures = os.path.join(out, "figures.json")
            command = [sys.executable, "-B", os.path.join(ROOT, "scripts", "quickstart_report.py"), "write", out, "--ranks", "2", "--data", out, "--json", figures]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            self.assertIn("5.600 at the start, 3.100 at the end", done.stdout)
            with open(figures, encoding="utf-8") as file:
                found = json.load(file)
            self.assertEqual((found["params"], found["rcache_fraction"], found["resident_share"]), (1000, 0.25, 0.1))
            self.assertTrue(os.path.exists(os.path.join(out, "loss.svg")))
            promised = subprocess.run([*command, "--promise"], capture_output=True, text=True, check=False)
            self.assertEqual(promised.returncode, 1)
            self.assertIn("the held-out loss is 3.1, more than 1.9", promised.stderr)


if __name__ == "__main__":
    unittest.main()
