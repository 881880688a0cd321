// Servers of a simulated world that were killed and have not ended, and what their copies still
// write.
#include <bit>
#include <string>

#include "tests/sim/sim_world.h"

namespace tidepool::memserver {

// The process that was killed may not end yet: then its copies are under way until it has. Those
// that it had of jobs on the host end with the process.
void SimWorld::NoteLateWrites() {
  constexpr int kLingeringMax = 4;
  const bool lingers = !chaos_is_over_ && std::popcount(world_->lingering()) < kLingeringMax &&
                       random_.Below(2) == 0;
  world_->LetKilledLinger(lingers);
  if (!lingers || world_->loop().stopped()) return;
  const std::byte* pool = world_->pool().own_records().data();
  for (const auto& slot : world_->tables().slots) {
    if (slot->session == nullptr || slot->job->states->record().gpu_servers.load() == 0) continue;
    const JobStates& states = *slot->job->states;
    const CopyLane& lane = slot->session->lane();
    for (uint32_t i = 0; i < lane.size(); ++i) {
      const Copy& copy = lane.at(i);
      const shm::Request& request = copy.request;
      const bool submits = request.op == static_cast<uint32_t>(shm::Op::kSubmitGradient);
      if (!submits && request.op != static_cast<uint32_t>(shm::Op::kPutWeights)) continue;
      const std::byte* to = states.staging(slot->rank);
      if (states.spec().IsFrozen(request.chunk)) {
        to = states.frozen(request.chunk).chunk->data +
             request.element_begin * BytesOf(states.spec().DTypeOf(request.chunk));
      } else if (!copy.to_staging) {
        to = submits
                 ? states.table().GradientBytes(states.chunk(request.chunk), request.element_begin)
                 : states.weights().PutBytes(request.chunk, request.element_begin);
      }
      late_.push_back({static_cast<uint64_t>(to - pool), copy.bytes});
    }
  }
}

// Overwrites the record of a job with copies on GPUs. The next server gives that job up, and
// withholds all free memory until the servers that may still copy for it have ended.
void SimWorld::DamageAJob() {
  if (world_->loop().stopped() || random_.Below(8) != 0) return;
  for (Actor& actor : actors_) {
    const Job* job = JobOf(actor);
    if (job == nullptr || !job->IsRecorded()) continue;
    if (job->states->record().gpu_servers.load() == 0) continue;
    job->states->record().uid ^= 1;
    damaged_.push_back(job->nonce);
    actor.there = false;
    for (const auto& rank : actor.ranks) rank->LoseStates();
    ++report_.damaged;
    return Note(actor.job->spec().name + " is damaged");
  }
}

// Any bytes may land for what was on its way: the rank may use its memory again by now.
void SimWorld::WriteLate() {
  if (random_.Below(600) == 0) return EndLingering();
  if (late_.empty() || random_.Below(20) != 0) return;
  const LateWrite& late = late_[random_.Below(late_.size())];
  std::byte* to = world_->pool().own_records().data() + late.offset;
  for (uint64_t i = random_.Below(late.bytes); i < late.bytes; ++i)
    to[i] = static_cast<std::byte>(random_.Next());
  ++report_.late_writes;
}

void SimWorld::EndLingering() {
  late_.clear();
  if (world_->lingering() == 0) return;
  Note("servers that were killed end");
  world_->EndLingering();
}

// Also one that was set aside.
const Job* SimWorld::JobOf(const Actor& actor) const {
  const std::string& name = actor.job->spec().name;
  if (const Job* job = world_->tables().FindJob(name)) return job;
  for (const SetAside& aside : world_->tables().set_aside) {
    if (aside.waits_for != 0 && aside.states().spec().name == name) return aside.job.get();
  }
  return nullptr;
}

}  // namespace tidepool::memserver
