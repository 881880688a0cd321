#include "bench/harness/hostile.h"

#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/drive/drive_load.h"
#include "bench/harness/row.h"
#include "bench/harness/served_job.h"
#include "bench/harness/server_process.h"
#include "shm/fd_socket.h"
#include "shm/socket_path.h"
#include "shm/spec/state_bytes.h"

namespace tidepool::bench {
namespace {

constexpr int64_t kLimitNs = 10 * kNsPerSecond;
constexpr int64_t kCrashEveryNs = kNsPerSecond / 20;
constexpr uint32_t kDescriptors = 253;  // the most in one message
constexpr uint64_t kChunkElements = 256 * 1024;

JobShape SmallJob(const std::string& name) {
  return {.name = name,
          .chunks = 2,
          .chunk_elements = 16 * 1024,
          .world = 1,
          .rcache_bytes = 64 * kKiB};
}
JobShape LargeJob(const std::string& name, uint32_t chunks) {
  return {.name = name,
          .chunks = chunks,
          .chunk_elements = kChunkElements,
          .world = 1,
          .rcache_bytes = sizeof(float) * kChunkElements};
}
// Jobs that take the rest of the pool, and states on the drive.
JobShape GreedyJob() {
  return LargeJob("greedy", 16);
}
JobShape NvmeJob() {
  return LargeJob(kNvmeHogName, 16);
}

void Send(int socket, const std::vector<int>& fds) {
  std::array<std::byte, 64> bytes{};
  iovec part{bytes.data(), bytes.size()};
  std::vector<std::byte> control(CMSG_SPACE(fds.size() * sizeof(int)));

  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();

  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));

  [[maybe_unused]] const auto sent = sendmsg(socket, &message, MSG_NOSIGNAL);
}

void FloodDescriptors(const Scene& scene) {
  const UniqueFd some(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> fds(kDescriptors, some.get());
  SteadyClock clock;
  for (;;) {
    const auto socket = shm::ConnectSocket(&clock, shm::DataSocketPath(scene.socket_dir), kLimitNs);
    if (socket.ok()) Send(socket.value().get(), fds);
  }
}

// Attaches, leaves requests in the ring, and never takes their answers.
void StopAtOnce(const Scene& scene) {
  ServedJob job(SmallJob("stopped"), scene.socket_dir);
  for (int i = 0; i < 64; ++i) {
    OrDie(
        job.rank(0)
            .StartFetch({.chunk = 0, .element_begin = 0, .element_count = 1024, .rcache_offset = 0},
                        job.version())
            .status());
  }
  for (;;) raise(SIGSTOP);
}

// Sends as many requests as allowed and takes no answers; then leaves silently, and returns.
void NeverDrain(const Scene& scene) {
  SteadyClock clock;
  client::ClientOptions options;
  options.clock = &clock;
  options.socket_dir = scene.socket_dir;
  options.attach_retry = true;
  const shm::JobSpec spec = SpecOf(SmallJob("never-drains"));
  const client::Range range{
      .chunk = 0, .element_begin = 0, .element_count = 1024, .rcache_offset = 0};

  for (;;) {
    auto rank = client::MemClient::Connect(options, spec, 0);
    if (!rank.ok()) continue;

    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      auto put = (*rank)->StartPutWeights(
          {.chunk = chunk, .element_begin = 0, .element_count = 16 * 1024, .rcache_offset = 0});
      if (!put.ok() || !(*rank)->Wait(*put).ok()) break;
    }

    for (uint32_t i = 0; i < client::kTicketsMax; ++i) {
      if (!(*rank)->StartFetch(range, 0).ok()) break;
    }
    clock.SleepNs(kNsPerMs);
  }
}

// Every 50 ms a trainer that attaches, sends requests, and dies.
void CrashLoop(const Scene& scene) {
  SteadyClock clock;
  for (int64_t next = clock.NowNs();; next += kCrashEveryNs) {
    const pid_t child = fork();
    if (child == 0) {
      client::ClientOptions options;
      options.clock = &clock;
      options.socket_dir = scene.socket_dir;
      auto rank = client::MemClient::Connect(options, SpecOf(SmallJob("crash")), 0);

      if (rank.ok())
        (void)(*rank)->StartPutWeights(
            {.chunk = 0, .element_begin = 0, .element_count = 1024, .rcache_offset = 0});
      kill(getpid(), SIGKILL);
    }

    if (child > 0) waitpid(child, nullptr, 0);
    clock.SleepNs(std::max<int64_t>(0, next + kCrashEveryNs - clock.NowNs()));
  }
}

// Takes the rest of the pool, and as many copies as its ring has slots.
void LeaseEverything(const Scene& scene) {
  const JobShape shape = GreedyJob();
  ServedJob job(shape, scene.socket_dir);
  std::vector<client::Ticket> tickets;
  for (;;) {
    for (uint32_t i = 0; i < 256; ++i) {
      const client::Range whole{.chunk = i % shape.chunks,
                                .element_begin = 0,
                                .element_count = kChunkElements,
                                .rcache_offset = 0};
      tickets.push_back(OrDie(job.rank(0).StartFetch(whole, job.version())));
    }

    for (const client::Ticket ticket : tickets) OrDie(job.rank(0).Wait(ticket).status());
    tickets.clear();
  }
}

// Steps without pauses, with all states on the drive.
void HogNvme(const Scene& scene) {
  ServedJob job(NvmeJob(), scene.socket_dir);
  for (;;) job.Step();
}

// The same job at another memserver, with the lowest priority in the system: the remaining cost is
// the machine's, not that of sharing a memserver.
void HogNvmeElsewhere(const Scene& scene) {
  const sched_param none{};
  if (sched_setscheduler(0, SCHED_IDLE, &none) != 0)
    Die("the system does not let a process be below the others");

  const std::string own = scene.drive + "/own";
  std::filesystem::create_directories(own);
  std::filesystem::permissions(own, std::filesystem::perms::owner_all);
  setenv("TMPDIR", scene.drive.c_str(), 1);  // removed with the drive's folder, as this is killed

  const uint64_t pool = shm::StateBytesOf(SpecOf(NvmeJob())).total() + 16 * kMiB;
  const auto server = OrDie(ServerProcess::Start(
      {"--pool", std::to_string(RoundUp(pool, kMiB)), "--keeper", "none", "--log-level", "error",
       "--states-on", "nvme", "--nvme",
       own + ":" + std::to_string(RoundUp(HogNvmeBytes(), kMiB) + 64 * kMiB)}));

  ServedJob job(NvmeJob(), server.socket_dir());
  for (;;) job.Step();
}

// Does nothing to memserver: its cost to a job is the machine's: two CPUs that share a core and its
// memory.
void Copy(const Scene&) {
  std::vector<std::byte> from(kChunkElements * sizeof(float)), to(from.size());
  for (;;) {
    std::memcpy(to.data(), from.data(), from.size());
    asm volatile("" ::: "memory");
  }
}

// Moves as much as WishDriveLoad requests.
void UseDrive(const Scene& scene) {
  RunDriveLoad(scene.drive);
}

constexpr auto kHostiles = std::to_array<Hostile>(
    {{"descriptors", "a flood of descriptors", 1, FloodDescriptors},
     {"stopped", "trainers that are stopped", 1, StopAtOnce},
     {"never-drains", "one that takes no answers", 1, NeverDrain},
     {"crash-loop", "20 crashes a second", 1, CrashLoop},
     {"leases-everything", "one that leases everything and fetches", 1, LeaseEverything},
     {"nvme", "one that keeps the drive busy", 1, HogNvme},
     {"drive", "one that moves as many bytes there without memserver", 1, UseDrive, true, true},
     {"elsewhere", "that one at a memserver of its own, below everybody", 1, HogNvmeElsewhere, true,
      true, 2000 * kNsPerMs},
     {"copies", "one that copies memory and asks memserver for nothing", 1, Copy, true}});

}  // namespace

std::span<const Hostile> Hostiles() {
  return kHostiles;
}

uint64_t HogPoolBytes() {
  return shm::StateBytesOf(SpecOf(GreedyJob())).total() +
         2 * shm::StateBytesOf(SpecOf(SmallJob("x"))).total();
}
uint64_t HogNvmeBytes() {
  return 2 * shm::StateBytesOf(SpecOf(NvmeJob())).total();
}

void RunHostile(const std::string& name, const Scene& scene) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The system, not memserver, divides the CPUs: a neighbour gets its lowest priority.
  setpriority(PRIO_PROCESS, 0, 19);
  for (const Hostile& hostile : kHostiles) {
    if (name == hostile.name) hostile.run(scene);
  }
  Die("there is no neighbour " + name);
}

HostileProcesses::HostileProcesses(const Hostile& hostile, const Scene& scene) {
  for (uint32_t i = 0; i < hostile.processes; ++i) {
    std::array<std::string, 7> words{"bench_neighbour", "--hostile", hostile.name, "--socket-dir",
                                     scene.socket_dir,  "--nvme",    scene.drive};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, group_);  // 0: the first one's own

    pid_t pid = -1;
    const int failed =
        posix_spawn(&pid, "/proc/self/exe", nullptr, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0) Die("a neighbour cannot be started: " + std::string(std::strerror(failed)));
    if (group_ == 0) group_ = pid;
  }
}

HostileProcesses::~HostileProcesses() {
  kill(-group_, SIGKILL);
  while (waitpid(-group_, nullptr, 0) > 0 || errno == EINTR) {
  }
}

}  // namespace tidepool::bench
