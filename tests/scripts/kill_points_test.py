"""Every TP_POINT and TP_STORE_POINT of the processes that a training run has is killed at, five times or more: in the campaign of thin trainers, in the tests of
the trainer itself, or where this page names it with its reason."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ["base", "client", "device", "memserver", "nvme", "optim", "shm", "trainer"]
TABLES = ["tests/process/kill_campaign.cpp", "tests/trainer/resume/trainer_kill_test.cpp", "tests/trainer/program/checkpoint_run_test.cpp", "tests/trainer/program/step_log_run_test.cpp"]
FROZEN = "only with frozen chunks: frozen_base_test.cpp"
ON_NVME = "only with states on NVMe: nvme_kill_test.cpp"
ON_GPU = "only with states on a GPU: gpu_test.cpp"
FORMER = "only while a server before it has not ended: former_servers_test.cpp"
DEMOTED = "only when states leave the host: demotion_test.cpp"
NUMBERS = "thin trainers have the same numbers in each step: tests/python/test_points.py"
STAGED = "only in a step that goes through stages: ATrainerThatIsKilledBetweenStagesGoesOn in trainer_kill_test.cpp"
ELSEWHERE = {
    "server.demotion_begun": DEMOTED,
    "server.demotion_committed": DEMOTED,
    "server.demotion_ended": DEMOTED,
    "server.demotion_followed": DEMOTED,
    "server.demotion_noted": DEMOTED,
    "server.demotion_staged": DEMOTED,
    "server.demotion_written": DEMOTED,
    "server.frozen_claimed": FROZEN,
    "server.frozen_put": FROZEN,
    "server.frozen_sealed": FROZEN,
    "nvme.writes_out": ON_NVME,
    "server.gpu_piece_stored": ON_GPU,
    "server.gpu_share_imported": ON_GPU,
    "server.gpu_share_made": ON_GPU,
    "server.gpu_share_ready": ON_GPU,
    "server.fetch_passed": ON_GPU,
    "server.gpu_unit_begun": ON_GPU,
    "server.gpu_unit_passed": ON_GPU,
    "server.former_forgotten": FORMER,
    "server.job_taken_up": FORMER,
    "server.piece_staged": ON_NVME,
    "server.piece_stored": ON_NVME,
    "server.piece_written": ON_NVME,
    "server.step_dropped": "no gradient of the campaigns is infinite: found_by_simulation_test.cpp, and the simulation",
    "server.fallback_slot_written": "only where a drive takes no states: unwritten_test.cpp",
    "keeper.given": "the memory dies with both: durability_test.cpp",
    "server.rank_queued": "campaigns have room for all: shared_pool_test.cpp",
    "server.frozen_counted": "nothing is stored there: it counts work for frozen_test.cpp",
    "server.directory_chosen": "nothing is stored there: it counts work for placement_test.cpp",
    "server.range_chosen": "nothing is stored there: it counts work for host_pool_test.cpp",
    "server.frozen_listed": "nothing is stored there: it counts work for frozen_list_test.cpp",
    "server.frozen_let_go": "nothing is stored there: it counts work for frozen_list_test.cpp",
    "trainer.base_hashed": "nothing is stored there: it counts work for base_names_test.cpp",
    "server.save_listed": "nothing is stored there: it counts work for turn_work_test.cpp",
    "trainer.stage_forward_done": STAGED,
    "trainer.stage_backward_done": STAGED,
    "trainer.coming": "a rank is held there before it has anything to lose: trainer_kill_test.cpp",
    "shm.spec_summed": "nothing is stored there: it counts work for spec_sums_test.cpp",
    "client.numbers_sent": NUMBERS,
    "server.step_numbers_taken": NUMBERS,
    "server.step_slotted": NUMBERS,
    "server.sealed_before_slot": "part of a planted bug, and passed with it alone",
    "keeper.respawning": "the memory dies with both: durability_test.cpp",
}


def points_of_sources():
    names = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.cpp"):
            names.update(re.findall(r'TP_(?:STORE_)?POINT\("([^"]+)"[,)]', path.read_text()))
    return names


def points_of_tables():
    names = set()
    for table in TABLES:
        rows = re.search(r"kPoints\[\] = \{(.*?)\};", (ROOT / table).read_text(), re.S).group(1)
        names.update(re.findall(r'"([^"]+)"', rows))
    return names


def main():
    sources, tables = points_of_sources(), points_of_tables()
    wrong = [f"{name}: is in the sources, but nobody is killed there" for name in sorted(sources - tables - set(ELSEWHERE))]
    wrong += [f"{name}: is in a table, but not in the sources" for name in sorted((tables | set(ELSEWHERE)) - sources)]
    print("\n".join(wrong) or f"{len(sources)} points, all of them killed at")
    return 1 if wrong or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
