"""The PEP 517 backend of `pip install .` and `pip wheel .`: scripts/wheel packs the wheel from the release build in build/.

--config-settings no-build=1 packs an existing build. Nothing is downloaded; scripts/setup has installed the build's dependencies.
"""

import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if subprocess.run([os.path.join(ROOT, "scripts", "setup"), "--check"], check=False).returncode != 0:
        sys.exit("error: Tidepool is built of Debian's packages and of LibTorch; run scripts/setup, which installs them, and try again")
    words = ["--no-build"] if (config_settings or {}).get("no-build") else []
    done = subprocess.run([os.path.join(ROOT, "scripts", "wheel"), *words, "--out", wheel_directory], stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return os.path.basename(done.stdout.split()[-1])


def build_sdist(sdist_directory, config_settings=None):
    sys.exit("error: Tidepool is installed from a checkout or as a wheel; there is no source distribution")
