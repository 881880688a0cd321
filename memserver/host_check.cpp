#include "memserver/host_check.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/system/system_memory.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memserver/probe/gpu_source.h"
#include "memserver/residency/pool/pool_pages.h"
#include "memserver/probe/topology_report.h"
#include "memserver/traffic/state_tier.h"
#include "memserver/update/worker_team.h"
#include "shm/socket_path.h"

namespace tidepool::memserver {

namespace {

constexpr uint64_t kDescriptorsOfServer = 64;  // sockets, queues, logs
// Socket, pidfd, two segments, doorbell, rCache, stream, one to spare.
constexpr uint64_t kDescriptorsOfSession = 8;
constexpr int kSealFutureWrite = 0x0010;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr int kPeerPidFd = 77;            // SO_PEERPIDFD, Linux 6.5

Finding Ok(std::string subject, std::string text) {
  return {Verdict::kOk, std::move(subject), std::move(text), ""};
}
Finding Warn(std::string subject, std::string text, std::string remedy) {
  return {Verdict::kWarn, std::move(subject), std::move(text), std::move(remedy)};
}
Finding Fail(std::string subject, std::string text, std::string remedy) {
  return {Verdict::kFail, std::move(subject), std::move(text), std::move(remedy)};
}

Finding CheckMemory(const ServerOptions& options) {
  const MemoryBudget budget = ReadMemoryBudget();
  const uint64_t left_over = 256 * kMiB;
  const uint64_t staging = options.settings.nvme.directories.empty()
                               ? 0
                               : StateTier::MemoryBytes(options.settings.nvme.directories.size());
  const uint64_t need = options.pool_bytes +
                        WorkerTeam::UndoBytes(options.settings.optimizer.threads) + staging +
                        left_over;

  const std::string numbers = "a pool of " + FormatBytes(options.pool_bytes) + "; available are " +
                              FormatBytes(budget.bytes_available) + " (" + budget.limited_by + ")";
  if (need > budget.bytes_available)
    return Fail("memory", numbers, "give a smaller --pool, or free memory");
  if (need + options.rcache_limit > budget.bytes_available) {
    return Warn("memory",
                numbers + ", too little for pool and rCaches of " +
                    FormatBytes(options.rcache_limit) + " at once",
                "give a smaller --pool or --rcache-limit");
  }
  return Ok("memory", numbers);
}

Finding CheckMemlock(const ServerOptions& options) {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY || geteuid() == 0)
    return Ok("memlock", "memory may be locked");
  const std::string text = "RLIMIT_MEMLOCK is " + FormatBytes(limit.rlim_cur);
  if (limit.rlim_cur >= options.pool_bytes) return Ok("memlock", text);
  return Warn("memlock", text + "; the pool is not locked today, a GPU will need it",
              "systemd: LimitMEMLOCK=infinity; shell: ulimit -l unlimited");
}

Finding CheckReserved(const ServerOptions& options) {
  const uint64_t need =
                     options.pool_bytes + WorkerTeam::UndoBytes(options.settings.optimizer.threads),
                 there = ReservedHugeBytes();
  const std::string text =
      FormatBytes(there) + " of huge pages are set aside; the pool needs " + FormatBytes(need);
  if (there >= need) return Ok("huge pages", text);
  return Warn(
      "huge pages", text,
      "as root: sysctl vm.nr_hugepages=" + std::to_string(DivideUp(need, kHugePageBytes) + 1));
}

// The system's promise. Some systems grant no huge pages until the mode has been written once; the
// pages actually obtained are in the log line `ready` and in `memctl status`.
Finding CheckHugePages(const ServerOptions& options) {
  if (options.settings.pool.reserved_pages) return CheckReserved(options);
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t open = text.find('['), end = text.find(']');
  const std::string mode =
      open == std::string::npos || end < open ? "unknown" : text.substr(open + 1, end - open - 1);
  if (!options.settings.pool.huge_pages) return Ok("huge pages", "not asked for (--huge off)");
  if (mode == "advise" || mode == "always" || mode == "within_size" || mode == "force")
    return Ok("huge pages", "granted on request (" + mode + ")");

  return Warn("huge pages", "shared memory gets 4 KiB pages only (shmem_enabled is " + mode + ")",
              "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
}

Finding CheckSeals() {
  const UniqueFd fd(memfd_create("tidepool-check", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | kSealFutureWrite;
  if (fd.valid() && fcntl(fd.get(), F_ADD_SEALS, seals) == 0) return Ok("memfd seals", "available");
  return Fail("memfd seals", std::string("memory cannot be sealed: ") + std::strerror(errno),
              "Linux 5.1 or newer is needed");
}

Finding CheckPidFd() {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!pidfd.valid())
    return Fail("pidfd", "the death of a trainer could be hidden by its children",
                "Linux 5.3 or newer is needed");
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
    return Fail("pidfd", "no Unix sockets", "check seccomp filters");

  const UniqueFd left(pair[0]), right(pair[1]);
  int peer = -1;
  socklen_t length = sizeof peer;
  const bool of_socket = getsockopt(left.get(), SOL_SOCKET, kPeerPidFd, &peer, &length) == 0;
  const UniqueFd peer_fd(peer);
  return of_socket ? Ok("pidfd", "available, also from sockets")
                   : Ok("pidfd", "available by pid (from sockets with Linux 6.5)");
}

Finding CheckDescriptors(const ServerOptions& options) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const uint64_t need =
      kDescriptorsOfServer + kDescriptorsOfSession * options.settings.limits.sessions_max;
  const std::string text = std::to_string(limit.rlim_cur) + " file descriptors; " +
                           std::to_string(options.settings.limits.sessions_max) +
                           " sessions need " + std::to_string(need);
  if (limit.rlim_cur >= need) return Ok("descriptors", text);
  return Warn("descriptors", text,
              "ulimit -n " + std::to_string(need) + ", or a smaller --sessions-max");
}

Finding CheckSockets(const ServerOptions& options) {
  const std::string& path = options.settings.socket_dir;
  if (const Status status = shm::CheckSocketDir(path); !status.ok())
    return Fail("sockets", status.what(), "give a shorter --socket-dir");
  struct stat about {};
  if (lstat(path.c_str(), &about) != 0) {
    const size_t slash = path.rfind('/');
    const std::string parent = slash == 0 ? "/" : path.substr(0, slash);
    if (access(parent.c_str(), W_OK | X_OK) == 0) return Ok("sockets", path + " will be made");
    return Fail("sockets", path + " does not exist and cannot be made: " + std::strerror(errno),
                "give another --socket-dir");
  }

  if (!S_ISDIR(about.st_mode) || about.st_uid != geteuid() ||
      (about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Fail("sockets", path + " is not a directory of this user alone",
                "chmod 700, or give another --socket-dir");
  }
  const UniqueFd lock(open(shm::LockFilePath(path).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (lock.valid() && flock(lock.get(), LOCK_SH | LOCK_NB) != 0) {
    return Warn("sockets", "a memserver serves " + path + " already",
                "stop it, or give another --socket-dir");
  }
  return Ok("sockets", path);
}

// A machine without GPUs passes: rCaches then lie on the host.
std::vector<Finding> CheckGpus(const GpuSource& source) {
  if (!source.list) return {Ok("gpu", "none is used (--gpu none)")};
  auto gpus = source.list();
  if (!gpus.ok()) {
    const std::string why = gpus.status().why();
    return {Ok("gpu", "none: " + gpus.status().what() + (why.empty() ? "" : " (" + why + ")") +
                          "; rCaches lie on the host")};
  }

  std::vector<Finding> findings;
  for (const device::Gpu& gpu : *gpus) {
    const std::string lacks = WhatItLacks(gpu);
    findings.push_back(
        lacks.empty() ? Ok("gpu", Text(gpu))
                      : Warn("gpu", Text(gpu) + ": " + lacks, "a newer driver, or --gpu none"));
  }
  return findings;
}

const char* NameOf(Verdict verdict) {
  return verdict == Verdict::kOk ? "OK  " : verdict == Verdict::kWarn ? "WARN" : "FAIL";
}

}  // namespace

std::vector<Finding> CheckHost(const ServerOptions& options) {
  std::vector<Finding> findings{
      CheckMemory(options), CheckMemlock(options), CheckHugePages(options),
      // Features of the kernel.
      CheckSeals(), CheckPidFd(), CheckDescriptors(options), CheckSockets(options),
      Ok("places", PlacesLine(options.topology, options.places)),
      Ok("cpu", std::string("instruction set ") + optim::NameOf(options.settings.optimizer.isa) +
                    ", " + std::to_string(options.settings.optimizer.threads) +
                    " optimizer workers")};
  for (Finding& gpu : CheckGpus(options.gpus)) findings.push_back(std::move(gpu));
  return findings;
}

std::string Format(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    std::string subject = finding.subject;
    subject.resize(std::max<size_t>(subject.size(), 12), ' ');
    text += std::string(NameOf(finding.verdict)) + "  " + subject + "  " + finding.text + "\n";
    if (!finding.remedy.empty()) text += "                    fix: " + finding.remedy + "\n";
  }
  return text;
}

int ExitCodeOf(const std::vector<Finding>& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst == Verdict::kOk ? kExitOk : worst == Verdict::kWarn ? kExitFailed : kExitHostUnfit;
}

}  // namespace tidepool::memserver
