#include "memserver/jobs/recovery/given_up.h"

#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/planted.h"

namespace tidepool::memserver {
namespace {

// Bits of the former servers that may still copy into the job's memory: all living ones if its
// records cannot be read.
uint32_t MayCopyFor(const LoopNeighbours& neighbours, const GivenUp& job,
                    const FormerCopies& former) {
  if (job.kept == nullptr) return former.living;
  return (GpuServersOf(*neighbours.pool, *job.indexed) & former.living) |
         (job.kept->spec->frozen.empty() ? 0 : former.copying);
}

std::string PidsOf(const IndexContents& contents, uint32_t servers) {
  std::string pids;
  for (const NotedServer& server : contents.servers) {
    if ((servers & BitOf(server.place)) != 0)
      pids += (pids.empty() ? "" : ", ") + std::to_string(server.process.pid);
  }
  return pids;
}

}  // namespace

Status WhyItWaits(const IndexContents& contents, uint32_t servers, const std::string& who) {
  return Status(ErrorId::kNotReady, who + " waits for the end of process " +
                                        PidsOf(contents, servers) +
                                        ", a memserver that was killed: what it copies from and to "
                                        "GPUs may still be under way")
      .Why(
          "a killed process does not end while the system waits for something in its name, as a "
          "file system that does not answer")
      .Fix(
          "see what it waits for (`cat /proc/PID/task/*/stack`): the job goes on by itself as soon "
          "as that process has ended");
}

uint32_t GpuServersOf(const HostPool& pool, const IndexedJob& job) {
  const auto records = pool.Look(job.records_offset, job.records_bytes);
  if (records.size() < sizeof(JobRecord)) return ~uint32_t{0};
  return reinterpret_cast<const JobRecord*>(records.data())
      ->gpu_servers.load(std::memory_order_relaxed);
}

uint32_t GpuServersOf(const HostPool& pool, const IndexContents& contents) {
  uint32_t servers = 0;
  for (const IndexedJob& job : contents.jobs) servers |= GpuServersOf(pool, job);
  return servers;
}

void GiveWithheld(const LoopNeighbours& neighbours, uint32_t ended, Tables* tables) {
  Withheld& withheld = tables->withheld;
  if (withheld.slots.empty()) return;
  withheld.waits_for &= ~ended;
  if (withheld.waits_for != 0) return;
  LogInfo("memory that was withheld is free", {{"jobs_given_up", withheld.slots.size()}});
  for (const uint32_t slot : withheld.slots) neighbours.index->Remove(slot);
  withheld = {};
  neighbours.pool->Withhold(false);
}

void GiveUp(const LoopNeighbours& neighbours, const GivenUp& job, const FormerCopies& former,
            Tables* tables) {
  LogError("a job in kept memory is given up",
           {{"job", job.indexed->job}, {"why", job.why.Line()}});
  if (job.kept != nullptr && job.kept->sealed_version > 0)
    tables->lost.Note({job.kept->spec->name, job.kept->uid, job.kept->sealed_version, WallSeconds(),
                       job.why.Line()});

  const uint32_t copying = MayCopyFor(neighbours, job, former);
  tables->withheld.waits_for |= copying;
  if (copying != 0 && !TP_PLANTED("recover.given_up_under_copies")) {
    tables->withheld.slots.push_back(job.indexed->slot);
  } else {
    neighbours.index->Remove(job.indexed->slot);
  }
}

void WithholdMemory(const LoopNeighbours& neighbours, const IndexContents& contents,
                    Tables* tables) {
  if (tables->withheld.slots.empty()) return;
  tables->withheld.why = WhyItWaits(contents, tables->withheld.waits_for,
                                    "free memory of the pool, in which a job was given up,")
                             .Fix("jobs are admitted again as soon as that process has ended");
  LogWarn("free memory is withheld",
          {{"jobs_given_up", tables->withheld.slots.size()}, {"why", tables->withheld.why.Line()}});
  neighbours.pool->Withhold(true);
}

}  // namespace tidepool::memserver
