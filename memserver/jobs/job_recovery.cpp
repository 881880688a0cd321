#include "memserver/jobs/job_recovery.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/jobs/recovery/given_up.h"
#include "memserver/residency/kept/job_records.h"
#include "shm/spec/gpu_states.h"

namespace tidepool::memserver {
namespace {

std::span<const optim::UndoArea> UndoAreas(const HostPool& pool) {
  const std::span<std::byte> own = pool.own_records();
  return {reinterpret_cast<const optim::UndoArea*>(own.data()),
          TP_PLANTED("recover.one_worker_only") ? 2 : own.size() / sizeof(optim::UndoArea)};
}

// Converts again the shards whose weights have all arrived while their chunk is incomplete.
void LoadAgain(Job* job) {
  JobStates& states = *job->states;
  for (ChunkId id = 0; id < states.chunks().size(); ++id) {
    if (states.chunk(id).version != kNoVersion) continue;
    for (Rank rank = 0; rank < job->spec().world; ++rank) {
      if (!job->spec().IsMember(id, rank) ||
          states.intake(id, rank).put_elements < states.chunk(id).shard_elements)
        continue;

      if (states.chunk(id).narrows()) {
        job->narrows.Push({id, rank});
      } else {
        CountLoadedShard(job, id);
      }
    }
  }
}

void AwaitRanks(const LoopNeighbours& neighbours, Job* job) {
  job->awaiting_since_ns = job->detached_ns = neighbours.clock->NowNs();
  for (Rank rank = 0; rank < job->spec().world; ++rank) {
    const RankRecord& record = job->states->record().ranks[rank];
    if (!job->IsAwaited(rank)) continue;
    neighbours.replies->Push(AwaitRank{job->id, rank, record.nonce.load(std::memory_order_relaxed),
                                       record.pid, record.process_start});
  }
}

std::string NameOf(const JobStates& states) {
  return "job " + std::to_string(states.record().job) + " (" + states.spec().name + ")";
}

// Ok unless the former server held moments that were not yet stored on NVMe or a GPU
// (residency/pool/moment_landing.h): its memory is lost.
Status WhyMomentsLost(const JobStates& states) {
  const bool began = states.sealed_version() > 0 && !states.weights_ready();
  if (!began || (!states.spills() && !states.uses_gpus())) return Status();
  return Status(ErrorId::kStatesLost,
                NameOf(states) + " had not all of its states yet, which came from a checkpoint")
      .Why("moments that go to NVMe or to a GPU are put again by a new job alone")
      .Fix("start the run again, behind the same checkpoint");
}

// Ok unless the job has states in a directory that is absent now, while the server was given as
// many directories as the job knows. A job with shares on GPUs cannot be set aside by a server: it
// waits until one has all directories.
Status WhyAbsent(const LoopNeighbours& neighbours, const JobStates& states) {
  const std::vector<uint64_t>& bytes = states.nvme_bytes();
  if (neighbours.nvme_absent.size() < bytes.size()) return Status();
  for (size_t d = 0; d < bytes.size(); ++d) {
    const Status& absent = neighbours.nvme_absent[d];
    const bool has_nothing = bytes[d] == 0 || absent.ok();
    if (has_nothing || neighbours.tier->HasRangeIn(static_cast<uint32_t>(d), states.record().nonce))
      continue;

    return Status(ErrorId::kNvmeDirectoryMissing,
                  NameOf(states) +
                      " has states on NVMe in a directory that is not there; they are kept")
        .Where(neighbours.tier->directory(static_cast<uint32_t>(d)).path)
        .Why(absent.what())
        .Fix(
            "give the directory back and restart memserver (memctl shutdown, or SIGTERM): the job "
            "goes on then");
  }
  return Status();
}

Status FindOnNvme(StateTier* tier, JobStates* states) {
  const std::string job = NameOf(*states);
  const size_t given = tier == nullptr ? 0 : tier->directories().size();
  if (states->nvme_bytes().size() > given) {
    return Status(ErrorId::kNvmeDirectoryMissing,
                  job + " has states on NVMe in " + std::to_string(states->nvme_bytes().size()) +
                      " directories; " + std::to_string(given) + " were given now");
  }

  switch (tier->Adopt(states->record().nonce, states)) {
    case StateTier::Adopted::kYes: return Status();
    case StateTier::Adopted::kOtherOrder:
      return Status(ErrorId::kNvmeDirectoryMissing,
                    job + " has states on NVMe, in these directories in another order");
    case StateTier::Adopted::kUnknown: break;
  }
  return Status(
      ErrorId::kKeptMemoryBad,
      job + " has states on NVMe, and the directories that were given know nothing of it");
}

// Finds the memory of the job's shares among what the keeper holds. The preparation thread is asked
// to map it once the job is in the table.
Status FindShares(const KeptJob& kept, std::span<const HeldMemory> states, Job* job) {
  const JobRecord& record = job->states->record();
  for (Rank rank = 0; rank < job->gpus.shares().size() && rank < kept.spec->states_on_gpu; ++rank) {
    GpuShare& share = job->gpus.shares()[rank];
    const bool has_memory = record.gpu_shares[rank].held.load(std::memory_order_relaxed) != 0;
    const auto slot = GpuShareSlot(kept.nonce, rank, record.gpu_shares[rank]);
    const std::string whose =
        "the states of " + kept.spec->name + " on the GPU of rank " + std::to_string(rank);

    if (has_memory && (!slot || *slot < kStateSlotsFirst || *slot >= kKeptSlotsMax)) {
      return Status(ErrorId::kKeptMemoryBad, whose + " are noted with a check that does not fit");
    }
    for (uint64_t id = rank; id < kept.spec->states_on_gpu && !has_memory; id += kept.spec->world) {
      if (job->states->chunk(static_cast<ChunkId>(id)).version != kNoVersion)
        return Status(ErrorId::kKeptMemoryBad, whose + " have no memory");
    }

    if (!has_memory) continue;
    share.slot = *slot;
    if (std::none_of(states.begin(), states.end(),
                     [&](const HeldMemory& held) { return held.slot == *slot; })) {
      return Status(ErrorId::kStatesLost, whose + " are lost: the keeper does not hold them");
    }
    share.life = GpuShare::Life::kImporting;
  }
  return Status();
}

// The import to ask for, if the slot holds a share of the job.
std::optional<ImportStates> ShareIn(const HeldMemory& held, const Job& job) {
  for (Rank rank = 0; rank < job.gpus.shares().size(); ++rank) {
    const GpuShare& share = job.gpus.shares()[rank];
    if (share.life != GpuShare::Life::kImporting || share.slot != held.slot) continue;
    return ImportStates{.job = job.id,
                        .rank = rank,
                        .gpu = job.states->record().gpu_shares[rank].gpu,
                        .exported = Duplicate(held.fd.get()),
                        .bytes = shm::GpuShareBytes(job.spec(), rank)};
  }
  return std::nullopt;
}

// From here on, units of the job may be on the streams of this server's shares.
void AskForShare(const LoopNeighbours& neighbours, ImportStates share, Job* job) {
  job->states->records().NoteGpus(neighbours.own_server);
  neighbours.replies->Push(std::move(share));
}

void AskForShares(const LoopNeighbours& neighbours, std::span<const HeldMemory> states,
                  Tables* tables) {
  for (const HeldMemory& held : states) {
    bool used = false;
    for (const auto& job : tables->jobs) {
      auto share = ShareIn(held, *job);
      used |= share.has_value();
      if (share) AskForShare(neighbours, std::move(*share), job.get());
    }

    for (SetAside& aside : tables->set_aside) {
      auto share = ShareIn(held, *aside.job);
      used |= share.has_value() && !TP_PLANTED("recover.shares_let_go_of");
      if (share) aside.shares.push_back(std::move(*share));
    }
    if (!used && neighbours.keeps != nullptr) neighbours.keeps->Push(KeepStates{.slot = held.slot});
  }
}

// Bits of the servers that have to end before anybody touches the job. A missing frozen chunk may
// have been on its way from any GPU.
uint32_t WaitsFor(const FormerCopies& former, const JobStates& states) {
  const auto frozen = states.frozen();
  const bool awaits_frozen = std::any_of(frozen.begin(), frozen.end(),
                                         [](const FrozenUse& use) { return !use.chunk->sealed; });
  return (states.record().gpu_servers.load(std::memory_order_relaxed) & former.living) |
         (awaits_frozen ? former.copying : 0);
}

Result<KeptJob> ReadJob(const LoopNeighbours& neighbours, const IndexedJob& indexed,
                        const Tables& tables) {
  if (tables.FindJob(indexed.job) != nullptr || tables.FindJobByNonce(indexed.nonce) != nullptr) {
    return Status(ErrorId::kKeptMemoryBad, "the index names two jobs alike");
  }
  return ReadJobRecords(neighbours.pool->Look(indexed.records_offset, indexed.records_bytes),
                        indexed);
}

// Leaves a job that lacks a drive in the form that the next server expects: its open tiles are
// closed now, because workers of other jobs write over the undo areas meanwhile.
Result<std::unique_ptr<Job>> CloseTilesOf(const LoopNeighbours& neighbours, const KeptJob& kept,
                                          std::unique_ptr<JobStates> states) {
  auto job = std::make_unique<Job>(kept.job, std::move(states), neighbours.pool, neighbours.tier);
  if (TP_PLANTED("recover.tiles_left_open")) return job;
  const auto areas = UndoAreas(*neighbours.pool);
  TP_RETURN_IF_ERROR(job->updates.CloseTiles(job->states->last_step(), areas));
  TP_RETURN_IF_ERROR(job->intake.Recover(areas));
  return job;
}

// Null if the job was set aside. Reads and writes nothing that a former server may still write:
// tiles belong to planes, or to gradient sums, that only workers change.
Result<std::unique_ptr<Job>> RecoverJob(const LoopNeighbours& neighbours, const KeptJob& kept,
                                        std::span<const HeldMemory> held, uint32_t living,
                                        Tables* all) {
  const Tables& tables = *all;
  TP_ASSIGN_OR_RETURN(std::unique_ptr<JobStates> states, JobStates::Recover(kept, neighbours.pool));
  TP_ASSIGN_OR_RETURN(FrozenHold frozen,
                      tables.frozen->Recover(*kept.spec, kept.uid, kept.frozen_places));
  states->HoldFrozen(std::move(frozen));
  TP_RETURN_IF_ERROR(WhyMomentsLost(*states));
  states->record().gpu_servers.fetch_and(living, std::memory_order_relaxed);

  if (const Status absent = WhyAbsent(neighbours, *states); !absent.ok()) {
    if (kept.spec->states_on_gpu > 0) return absent;
    TP_ASSIGN_OR_RETURN(std::unique_ptr<Job> lacking,
                        CloseTilesOf(neighbours, kept, std::move(states)));
    all->set_aside.push_back(
        {.job = std::move(lacking), .nonce = kept.nonce, .uid = kept.uid, .why = absent});
    return std::unique_ptr<Job>();
  }

  if (states->spills()) TP_RETURN_IF_ERROR(FindOnNvme(neighbours.tier, states.get()));
  auto job = std::make_unique<Job>(kept.job, std::move(states), neighbours.pool, neighbours.tier);

  job->nonce = kept.nonce;
  job->fingerprint = kept.fingerprint;
  job->uid = kept.uid;
  job->note = kept.note;
  job->index_slot = kept.slot;
  job->phase = JobPhase::kOpen;

  TP_RETURN_IF_ERROR(FindShares(kept, held, job.get()));
  const auto areas = UndoAreas(*neighbours.pool);
  TP_POINT("recover.job_read");
  TP_RETURN_IF_ERROR(job->updates.Resume(job->states->last_step(), areas));
  TP_POINT("recover.tiles_restored");
  TP_RETURN_IF_ERROR(job->intake.Recover(areas));
  TP_POINT("recover.step_counted");
  LoadAgain(job.get());
  if (job->run_broken()) job->intake.Drop();
  return job;
}

// The index lists jobs by slot, and slots are reused; reports for admins list jobs by number.
void SortByNumber(std::vector<std::unique_ptr<Job>>* jobs) {
  std::sort(jobs->begin(), jobs->end(), [](const auto& a, const auto& b) { return a->id < b->id; });
}

// Frees the NVMe ranges that belong to none of these jobs.
void RemoveOthersRanges(const LoopNeighbours& neighbours, const Tables& tables) {
  if (neighbours.tier == nullptr) return;

  std::vector<uint64_t> nonces;
  for (const auto& job : tables.jobs) {
    nonces.push_back(job->nonce);
    // A demotion's target counts only once the demotion is committed.
    if (job->states->demoted() > 0) nonces.push_back(DemotedKey(job->nonce));
  }
  for (const SetAside& job : tables.set_aside) {
    if (!TP_PLANTED("recover.set_aside_removed"))
      nonces.insert(nonces.end(), {job.nonce, DemotedKey(job.nonce)});
  }

  neighbours.tier->RemoveAllBut(nonces);
}

// Sets aside a job that is whole while former servers may still copy into its memory.
void LetWait(std::unique_ptr<Job> job, uint32_t waits_for, const IndexContents& contents,
             Tables* tables) {
  SetAside aside{.waits_for = waits_for,
                 .nonce = job->nonce,
                 .uid = job->uid,
                 .why = WhyItWaits(contents, waits_for, NameOf(*job->states))};
  LogWarn("a job in kept memory is set aside", {{"job", job->id}, {"why", aside.why.Line()}});
  for (const FrozenUse& use : job->states->frozen()) tables->frozen->Await(use.chunk, waits_for);
  aside.job = std::move(job);
  tables->set_aside.push_back(std::move(aside));
}

void GoOnWith(const LoopNeighbours& neighbours, std::unique_ptr<Job> job, Tables* tables) {
  LogInfo(
      "job found in kept memory",
      {{"job", job->id}, {"name", job->spec().name}, {"version", job->states->sealed_version()}});
  AwaitRanks(neighbours, job.get());
  tables->jobs.push_back(std::move(job));
}

}  // namespace

bool IsOver(const Job& job) {
  return job.run() == RunState::kOver ||
         (!job.HasRanks() && (job.AllLeftWell() || !job.states->weights_ready()));
}

Job* TakeUp(const LoopNeighbours& neighbours, SetAside aside, Tables* tables) {
  Job* job = aside.job.get();
  LogInfo("a job that was set aside goes on", {{"job", job->id}, {"name", job->spec().name}});
  tables->jobs.push_back(std::move(aside.job));
  SortByNumber(&tables->jobs);
  for (ImportStates& share : aside.shares) AskForShare(neighbours, std::move(share), job);
  AwaitRanks(neighbours, job);
  return job;
}

Status RecoverJobs(const LoopNeighbours& neighbours, const IndexContents& contents,
                   std::span<const HeldMemory> states, uint32_t living, Tables* tables) {
  if (TP_PLANTED("recover.predecessor_ignored")) living = 0;
  const FormerCopies former{living, GpuServersOf(*neighbours.pool, contents) & living};
  for (const Status& absent : neighbours.nvme_absent) {
    if (absent.id() == ErrorId::kNvmeDirectoryBad)
      LogError("an NVMe directory cannot be used: jobs with states there wait until it can",
               {{"why", absent.Line()}, {"directory", absent.where()}});
  }

  tables->last_job = contents.last_job;
  for (const IndexedJob& indexed : contents.jobs) {
    tables->last_job = std::max(tables->last_job, indexed.job);
    Result<KeptJob> kept = ReadJob(neighbours, indexed, *tables);
    auto recovered = kept.ok() ? RecoverJob(neighbours, *kept, states, living, tables)
                               : Result<std::unique_ptr<Job>>(kept.status());
    const ErrorId id = recovered.status().id();
    if (!recovered.ok() && id != ErrorId::kKeptMemoryBad && id != ErrorId::kStatesLost)
      return recovered.status();

    if (!recovered.ok()) {
      const KeptJob* const read = kept.ok() ? &*kept : nullptr;
      GiveUp(neighbours, {&indexed, read, recovered.status()}, former, tables);
    } else if (*recovered == nullptr) {
      LogError("a job in kept memory is set aside",
               {{"job", indexed.job}, {"why", tables->set_aside.back().why.Line()}});
    } else if (const uint32_t waits_for = WaitsFor(former, *(*recovered)->states); waits_for != 0) {
      LetWait(std::move(recovered).value(), waits_for, contents, tables);
      // Nobody continues this job.
    } else if (IsOver(**recovered)) {
      neighbours.index->Remove(indexed.slot);
    } else {
      GoOnWith(neighbours, std::move(recovered).value(), tables);
    }
  }

  WithholdMemory(neighbours, contents, tables);
  SortByNumber(&tables->jobs);
  GiveShareSlots(tables->AllJobs());
  AskForShares(neighbours, states, tables);
  RemoveOthersRanges(neighbours, *tables);
  return Status();
}

}  // namespace tidepool::memserver
