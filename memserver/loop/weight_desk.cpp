#include "memserver/loop/weight_desk.h"

#include <algorithm>

#include "base/buggify.h"

namespace tidepool::memserver {
namespace {

// True for a fetch that lacks only its weights. A fetch that waits for its trainer's streams does
// not count: those may wait for another fetch, and its chunk would stay in the window meanwhile.
bool IsDue(const Job& job, const Session& session, const shm::Request& request) {
  if (request.op != static_cast<uint32_t>(shm::Op::kFetch) || job.spec().IsFrozen(request.chunk))
    return false;
  if (!job.states->window().Covers(request.chunk) ||
      job.states->chunk(request.chunk).version != request.version)
    return false;
  return !session.IsOrdered(request) || session.HasWaited(request);
}

bool MayFill(const Job& job) {
  return job.states->window().any() && job.phase == JobPhase::kOpen && job.states->weights_ready();
}

}  // namespace

bool WeightDesk::Poll() {
  if (tables_->handing_over) return false;
  bool begun = false;
  for (const auto& job : tables_->jobs) {
    if (!MayFill(*job)) continue;
    FindAsked(job.get());
    begun |= FillAsked(job.get());
    if (!job->suspended && job->HasSlots() && !TP_BUGGIFY("weights.read_ahead_not"))
      begun |= FillAhead(job.get());
  }
  return begun;
}

// Lists the first request of each rank, then the second of each, and so on; per rank at most as
// many as there are slots.
void WeightDesk::FindAsked(Job* job) {
  std::vector<ChunkId>& asked = job->states->window().asked();
  asked.clear();
  const size_t ranks = job->slots.size();
  const size_t places = job->states->window().slots().size();

  for (uint32_t place = 0, found = 1; found > 0 && place < places; ++place) {
    found = 0;
    for (size_t i = 0; i < ranks; ++i) {
      const SessionSlot* slot = job->slots[(job->next_filled + i) % ranks];
      if (slot == nullptr || slot->session == nullptr || slot->violation != nullptr ||
          slot->leaving)
        continue;

      uint32_t nth = 0;
      for (const shm::Request& request : slot->session->waiting().requests()) {
        if (!IsDue(*job, *slot->session, request) || nth++ != place) continue;
        ++found;
        if (!job->states->window().IsAsked(request.chunk)) asked.push_back(request.chunk);
        break;
      }
    }
  }
}

bool WeightDesk::FillAsked(Job* job) {
  JobStates& states = *job->states;
  bool begun = false;
  for (const ChunkId chunk : states.window().asked()) {
    if (!states.weights().MayFill(chunk)) continue;
    const uint32_t slot = states.weights().GiveSlot(chunk, 0, true);
    if (slot == WeightWindow::kNone) break;

    job->fill.Begin(slot);
    job->next_filled = (job->next_filled + 1) % job->slots.size();
    begun = true;
  }
  return begun;
}

// Searches again only if a rank has sent a request, or a slot or a chunk has changed.
bool WeightDesk::FillAhead(Job* job) {
  JobStates& states = *job->states;
  const WeightUses& uses = states.window().uses();
  const uint64_t changes = uses.notes() + job->Changes() + states.window().fills;
  if (job->ahead_seen == changes) return false;

  const auto slots = static_cast<uint32_t>(states.window().slots().size());
  for (uint32_t ahead = 0; ahead < slots; ++ahead) {
    for (Rank rank = 0; rank < uses.ranks(); ++rank) {
      const auto chunk = uses.Next(rank, ahead);
      if (!chunk || !states.weights().MayFill(*chunk)) continue;
      const uint32_t slot = states.weights().GiveSlot(*chunk, uses.UntilNext(*chunk) + 1, true);
      if (slot == WeightWindow::kNone) {  // later fetches are needed later still
        job->ahead_seen = changes;
        return false;
      }

      job->fill.Begin(slot);
      return true;
    }
  }
  job->ahead_seen = changes;
  return false;
}

bool WeightDesk::IsAwaited(const Job& job) {
  if (!job.states->window().any()) return false;
  return std::any_of(job.slots.begin(), job.slots.end(), [&job](const SessionSlot* slot) {
    if (slot == nullptr || slot->session == nullptr || slot->violation != nullptr || slot->leaving)
      return false;
    const auto requests = slot->session->waiting().requests();
    return std::any_of(requests.begin(), requests.end(), [&](const shm::Request& request) {
      return IsDue(job, *slot->session, request);
    });
  });
}

}  // namespace tidepool::memserver
