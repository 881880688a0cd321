"""The program that `trainer estimate --pipeline --lp FILE` writes has, for a solver, the least step that the planner found."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

try:
    import highspy
except ImportError:
    highspy = None

MACHINE = {"origin": "a small machine", "gpu_memory": "40MiB", "tflops": 0.5}
# Root complexes, micro-batches, sequences of each, gigabytes a second. The shapes have four to six blocks.
TASKS = [
    ("small", [1, 1], 2, 4, 1.0),
    ("small", [2], 4, 1, 0.2),
    ("small", [1, 1, 1], 3, 2, 0.05),
    ("quickstart", [2, 2], 4, 1, 0.5),
    ("quickstart", [1, 1], 6, 2, 2.0),
]


def estimate(*words: str) -> dict:
    done = subprocess.run([os.path.join(os.environ["TIDEPOOL_BIN"], "trainer"), "estimate", "--json", *words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@unittest.skipIf(highspy is None, "highspy is not installed (scripts/setup --tests)")
class Optimum(unittest.TestCase):
    def solve(self, path: pathlib.Path) -> float:
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("mip_rel_gap", 1e-9)
        self.assertEqual(solver.readModel(str(path)), highspy.HighsStatus.kOk)
        solver.run()
        self.assertEqual(solver.getModelStatus(), highspy.HighsModelStatus.kOptimal)
        return solver.getInfo().objective_function_value

    def test_is_the_solvers(self):
        with tempfile.TemporaryDirectory() as directory:
            here = pathlib.Path(directory)
            for preset, gpus, micro_batches, sequences, rate in TASKS:
                with self.subTest(preset=preset, gpus=gpus, micro_batches=micro_batches, rate=rate):
                    machine = {**MACHINE, "root_complexes": [{"gpus": count, "gb_per_s": rate} for count in gpus]}
                    (here / "machine.json").write_text(json.dumps(machine))
                    plan = estimate("--preset", preset, "--pipeline", "auto", "--accumulate", str(micro_batches), "--batch", str(sequences),
                                    "--topology", str(here / "machine.json"), "--lp", str(here / "stages.lp"))
                    best = next((way for way in plan["ways"][:1] if way["program_gb_per_s"] > 0), None)
                    if best is None:  # one of the simple ways is scheduled shorter: the program is that of undisturbed copies
                        best = next(way for way in plan["ways"] if way["name"] == "copies undisturbed")
                    self.assertTrue(best["proven"])
                    self.assertAlmostEqual(self.solve(here / "stages.lp") * 1e6, best["program_ns"], delta=max(10, best["program_ns"] * 2e-6))


if __name__ == "__main__":
    unittest.main()
