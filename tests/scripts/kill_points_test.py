"""Every TP_POINT of the processes that a training run has is killed at in the campaign, or named here with its reason."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ["base", "client", "device", "memserver", "nvme", "optim", "shm"]
ELSEWHERE = {
    "keeper.given": "the memory dies with both: durability_test.cpp",
    "keeper.respawning": "the memory dies with both: durability_test.cpp",
}


def points_of_sources():
    names = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.cpp"):
            names.update(re.findall(r'TP_POINT\("([^"]+)"\)', path.read_text()))
    return names


def points_of_campaign():
    text = (ROOT / "tests/process/kill_campaign.cpp").read_text()
    table = re.search(r"kPoints\[\] = \{(.*?)\};", text, re.S).group(1)
    return set(re.findall(r'"([^"]+)"', table))


def main():
    sources, campaign = points_of_sources(), points_of_campaign()
    wrong = [f"{name}: is in the sources, but nobody is killed there" for name in sorted(sources - campaign - set(ELSEWHERE))]
    wrong += [f"{name}: is in the campaign, but not in the sources" for name in sorted((campaign | set(ELSEWHERE)) - sources)]
    print("\n".join(wrong) or f"{len(sources)} points, all of them killed at")
    return 1 if wrong or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
