"""What packaging/ says about memserver and memctl is so: flags, keys, metrics; and its scripts work. usage: packaging_test.py BIN_FOLDER"""

import fnmatch
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = sys.argv.pop()
PACKAGING = os.path.join(ROOT, "packaging")


def text_of(path):
    with open(os.path.join(PACKAGING, path), encoding="utf-8") as file:
        return file.read()


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL, **more)


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def port_of_nobody():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Texts(unittest.TestCase):
    def test_flags_and_keys_exist(self):
        known = flags_in(run(os.path.join(BIN, "memserver"), "--help").stdout) | {"--config"}
        unit = re.search(r"^ExecStart=(.*)$", text_of("systemd/tidepool-memserver.service"), re.M).group(1)
        args = re.search(r"args:\n((?: +- .*\n)+)", text_of("kubernetes/daemonset.yaml")).group(1)
        self.assertGreater(len(flags_in(args)), 5)
        self.assertEqual((flags_in(unit) | flags_in(args)) - known, set())
        checked = run(os.path.join(BIN, "memserver"), "config", "--config", os.path.join(PACKAGING, "memserver.toml"))
        self.assertEqual(checked.returncode, 0, checked.stderr)
        words = re.findall(r'"(--[^"]+)"', args)
        checked = run(os.path.join(BIN, "memserver"), "config", *words)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_commands_of_the_probes_exist(self):
        probes = re.findall(r'command: \["memctl", (.*)\]\}', text_of("kubernetes/daemonset.yaml"))
        self.assertEqual(len(probes), 3)
        for probe in probes:
            words = json.loads("[" + probe + "]")
            words[1] = "/no/such/directory"
            done = run(os.path.join(BIN, "memctl"), *["1ms" if word == "2s" else word for word in words])
            self.assertIn(done.returncode, (3, 6), (words, done.stderr))

    def test_kubernetes_knows_every_field_of_the_manifests(self):
        deps = os.environ.get("TIDEPOOL_DEPS", os.path.join(ROOT, ".deps"))
        python = os.path.join(deps, "venv", "bin", "python")
        check = "import sys, yaml, kubernetes_validate as k; k.validate(yaml.safe_load(open(sys.argv[1])), '1.29', strict=True)"
        manifest = os.path.join(PACKAGING, "kubernetes", "daemonset.yaml")
        done = run(python, "-c", check, manifest)
        self.assertEqual(done.returncode, 0, done.stderr + "\n(scripts/setup --tests installs the schemas)")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as wrong:
            wrong.write(text_of("kubernetes/daemonset.yaml").replace("livenessProbe:", "liveProbe:"))
            wrong.flush()
            self.assertIn("liveProbe", run(python, "-c", check, wrong.name).stderr)

    def test_the_pod_has_a_gpu_and_a_keeper_beside_memserver(self):
        text = text_of("kubernetes/daemonset.yaml")
        self.assertIn("\n      runtimeClassName: nvidia\n", text)
        self.assertIn("{name: NVIDIA_VISIBLE_DEVICES, value: all}", text)
        self.assertIn('"--keeper=external"', text)
        keeper = re.search(r'command: \["memserver", "keeper"\]\n +args:\n((?: +- .*\n)+)', text).group(1)
        with tempfile.TemporaryDirectory() as folder:
            words = [word.replace("/run/tidepool", folder) for word in re.findall(r'"(--[^"]+)"', keeper)]
            process = subprocess.Popen([os.path.join(BIN, "memserver"), "keeper", *words], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
            self.assertIn("keeper ready", process.stderr.readline())
            process.terminate()
            self.assertEqual(process.wait(30), 0)
            process.stderr.close()

    def test_the_image_is_made_of_what_there_is(self):
        text = text_of("docker/Dockerfile")
        image = re.search(r"^ +image: (\S+)$", text_of("kubernetes/daemonset.yaml"), re.M).group(1)
        self.assertIn(f"-t {image} .", text)
        self.assertIn("USER 61700:61700", text)
        self.assertIn("runAsUser: 61700", text_of("kubernetes/daemonset.yaml"))
        self.assertTrue(os.access(os.path.join(ROOT, re.search(r"RUN (\S+) --no-torch", text).group(1)), os.X_OK))
        with open(os.path.join(ROOT, "cmake", "Package.cmake"), encoding="utf-8") as file:
            package = file.read()
        self.assertIn("add_custom_target(packages", package)
        self.assertIn("set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)", package)
        self.assertIn("COPY --from=build /src/build/packages/tidepool_*.deb", text)
        user = re.search(r"^USER (\d+):(\d+)$", text, re.M)
        directory = re.search(r'^CMD \["memserver", "run", "--socket-dir", "(\S+)"\]$', text, re.M).group(1)
        self.assertIn(f"install -d -o {user.group(1)} -g {user.group(2)} -m 0700 {directory}\n", text)

    def test_the_image_is_made_of_all_files_of_the_repository(self):
        with open(os.path.join(ROOT, ".dockerignore"), encoding="utf-8") as file:
            patterns = file.read().split()
        for path in os.listdir(ROOT):
            if path in ("build", ".git", ".deps", "out") or path.startswith("build-"):
                self.assertTrue(any(fnmatch.fnmatch(path, pattern) for pattern in patterns), path)
            else:
                self.assertFalse(any(fnmatch.fnmatch(path, pattern) for pattern in patterns), f"{path} is left out")

    def test_the_pods_have_no_more_rights_than_they_need(self):
        text = text_of("kubernetes/daemonset.yaml")
        for word in ("hostIPC:", "hostPID:", "hostNetwork:", "privileged:"):
            self.assertNotIn(word, text)
        self.assertEqual(text.count('drop: ["ALL"]'), 3)
        self.assertEqual(text.count("allowPrivilegeEscalation: false"), 3)

    def test_the_unit_is_one(self):
        unit = text_of("systemd/tidepool-memserver.service")
        for line in ("Type=notify", "WatchdogSec=60s", "FileDescriptorStoreMax=128", "LimitMEMLOCK=infinity", "NoNewPrivileges=yes",
                     "Wants=nvidia-persistenced.service", "ExecStartPre=-+/usr/bin/nvidia-modprobe -c0 -u",
                     "StartLimitIntervalSec=0"):  # systemd would drop the descriptors of the jobs' memory with the unit that it gives up
            self.assertIn("\n" + line + "\n", unit)
        if shutil.which("systemd-analyze"):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "tidepool-memserver.service")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(unit.replace("/usr/bin/mem", os.path.join(os.path.abspath(BIN), "mem")))
                done = run("systemd-analyze", "verify", "--man=no", path)
                said = [line for line in done.stderr.splitlines() if "tidepool-memserver.service" in line]
                self.assertEqual((done.returncode, said), (0, []), done.stderr)


class WithAServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.port = port_of_nobody()
        cls.log = open(os.path.join(cls.folder.name, "log"), "w", encoding="utf-8")
        cls.server = subprocess.Popen([os.path.join(BIN, "memserver"), "run", "--socket-dir", cls.folder.name, "--pool", "16MiB", "--rcache-limit", "16MiB", "--keeper", "none",
                                       "--metrics-listen", f"127.0.0.1:{cls.port}"], stderr=cls.log, stdin=subprocess.DEVNULL)
        cls.environment = dict(os.environ, PATH=BIN + os.pathsep + os.environ["PATH"], TIDEPOOL_SOCKET_DIR=cls.folder.name, SLURM_JOB_ID="7")

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(30)
        cls.log.close()
        cls.folder.cleanup()

    def slurm(self, script, **more):
        return run(os.path.join(PACKAGING, "slurm", script), env=dict(self.environment, **more))

    def test_a_node_that_serves_takes_jobs(self):
        done = self.slurm("prolog.sh")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_the_epilog_has_nothing_to_do_where_there_is_no_job(self):
        self.assertEqual(self.slurm("prolog.sh").returncode, 0)
        self.assertEqual(self.slurm("epilog.sh").returncode, 0)
        self.assertEqual(self.slurm("epilog.sh", TIDEPOOL_SOCKET_DIR=os.path.join(self.folder.name, "none")).returncode, 0, "no server")

    def test_operations_lists_the_alerts_that_there_are(self):
        alerts = re.findall(r"^ +- alert: (\w+)$", text_of("monitoring/tidepool-alerts.yaml"), re.M)
        told = re.findall(r"^\| `(Tidepool\w+)` \|", text_of("../docs/operations.md"), re.M)
        self.assertEqual(told, alerts)

    def metrics(self):
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def test_the_scrape_example_is_for_these_rules_and_this_server(self):
        text = text_of("monitoring/tidepool-scrape.yaml")
        for rules in re.findall(r"^  - (\S+\.yaml)$", text, re.M):
            self.assertTrue(os.path.exists(os.path.join(PACKAGING, "monitoring", rules)))
        job = re.search(r"^  - job_name: (\w+)", text, re.M).group(1)
        self.assertIn(f'up{{job="{job}"}}', text_of("monitoring/tidepool-alerts.yaml"))
        address = re.search(r'targets: \["(\S+)"\]', text).group(1)
        for page in ("../docs/operations.md", "monitoring/tidepool-scrape.yaml"):
            self.assertIn(f"--metrics-listen {address}", text_of(page))
        self.assertTrue(self.slurm("prolog.sh").returncode == 0 and self.metrics().startswith("# HELP tidepool_"), "the server answers the scrape")

    def test_prometheus_takes_rules_example_and_metrics(self):
        promtool = shutil.which("promtool")  # of Debian's package prometheus, which also starts a server: scripts/setup leaves it alone
        if promtool is None:
            print("promtool is not here: rules, example and metrics are checked without it", file=sys.stderr)
            return
        for words in (["check", "rules", os.path.join(PACKAGING, "monitoring", "tidepool-alerts.yaml")], ["check", "config", os.path.join(PACKAGING, "monitoring", "tidepool-scrape.yaml")],
                      ["test", "rules", os.path.join(ROOT, "tests", "scripts", "alerts_test.yaml")]):
            done = run(promtool, *words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.slurm("prolog.sh").returncode, 0)
        done = subprocess.run([promtool, "check", "metrics"], input=self.metrics(), capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_dashboard_and_alerts_name_metrics_that_there_are(self):
        self.assertEqual(self.slurm("prolog.sh").returncode, 0)
        metrics = self.metrics()
        families = set(re.findall(r"^# TYPE (\w+) ", metrics, re.M))
        families |= {name + "_bucket" for name in re.findall(r"^# TYPE (\w+) histogram$", metrics, re.M)}
        dashboard = json.loads(text_of("monitoring/tidepool-dashboard.json"))
        shown = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        alerts = re.findall(r"^ +expr: (.*)$", text_of("monitoring/tidepool-alerts.yaml"), re.M)
        self.assertGreater(len(shown), 15)
        self.assertGreater(len(alerts), 5)
        for expression in shown + alerts:
            names = set(re.findall(r"\btidepool_\w+", expression))
            self.assertEqual(names - families, set(), expression)
            self.assertEqual(expression.count("("), expression.count(")"), expression)


if __name__ == "__main__":
    unittest.main()
