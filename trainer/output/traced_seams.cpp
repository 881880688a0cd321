#include "trainer/output/traced_seams.h"

#include <utility>

#include "base/system/whole_file.h"

namespace tidepool::trainer {

Result<client::Ticket> TracedService::Note(Result<client::Ticket> ticket, TraceLane lane,
                                           const client::Range& range, bool update) {
  if (!ticket.ok()) return ticket;
  LookAtFlags();
  going_[ticket.value()] = {
      .id = trace_->Begin(lane, "chunk " + std::to_string(range.chunk), range.chunk),
      .update = update};
  return ticket;
}

Result<client::Ticket> TracedService::StartFetch(const client::Range& range,
                                                 const client::Wanted& wanted) {
  if (std::exchange(version_, wanted.version) != wanted.version) seen_.clear();
  const bool first = seen_.insert(range.chunk).second;
  return Note(real_->StartFetch(range, wanted), TraceLane::kH2D, range, first);
}

Result<client::Ticket> TracedService::StartSubmitGradient(const client::Range& range,
                                                          Version version, uint32_t micro_batch) {
  return Note(real_->StartSubmitGradient(range, version, micro_batch), TraceLane::kD2H, range,
              false);
}

Result<client::Ticket> TracedService::StartEndStep(const client::StepEnd& end) {
  Result<client::Ticket> ticket = real_->StartEndStep(end);
  if (ticket.ok()) going_[ticket.value()] = {.end_step = true};
  return ticket;
}

void TracedService::Ended(std::map<client::Ticket, Going>::iterator going) {
  if (going->second.end_step) {
    trace_->Sealed();
  } else {
    trace_->End(going->second.id);
    if (going->second.update) trace_->ChunkSeen();
  }
  going_.erase(going);
}

void TracedService::LookAtFlags() {
  for (auto going = going_.begin(); going != going_.end();) {
    const auto here = going++;
    const client::TicketFlags flags =
        here->second.end_step ? client::TicketFlags() : real_->FlagsOf(here->first);
    if (flags.done == nullptr) continue;
    const uint64_t done = flags.done->load(std::memory_order_acquire);
    if (static_cast<int64_t>(done - flags.value) >= 0) Ended(here);
  }
}

bool TracedService::Test(client::Ticket ticket) {
  LookAtFlags();
  const bool over = real_->Test(ticket);
  const auto found = going_.find(ticket);
  if (over && found != going_.end()) Ended(found);
  return over;
}

Result<client::Outcome> TracedService::Wait(client::Ticket ticket) {
  Result<client::Outcome> outcome = real_->Wait(ticket);
  const auto found = going_.find(ticket);
  if (found != going_.end()) Ended(found);
  return outcome;
}

Collective::Ticket TracedCollective::StartAllGather(const BlockView& block) {
  const Ticket ticket = real_->StartAllGather(block);
  going_[ticket] = trace_->Begin(TraceLane::kAllGather, "all-gather");
  return ticket;
}

Collective::Ticket TracedCollective::StartReduceScatter(const BlockView& block) {
  const Ticket ticket = real_->StartReduceScatter(block);
  going_[ticket] = trace_->Begin(TraceLane::kReduceScatter, "reduce-scatter");
  return ticket;
}

Collective::Ticket TracedCollective::StartAllToAll(const PartsView& parts) {
  const Ticket ticket = real_->StartAllToAll(parts);
  going_[ticket] = trace_->Begin(TraceLane::kAllGather, "all-to-all");
  return ticket;
}

void TracedCollective::Ended(Ticket ticket) {
  const auto found = going_.find(ticket);
  if (found == going_.end()) return;
  trace_->End(found->second);
  going_.erase(found);
}

bool TracedCollective::Test(Ticket ticket) {
  const bool over = real_->Test(ticket);
  if (over) Ended(ticket);
  return over;
}

Status TracedCollective::Wait(Ticket ticket) {
  Status waited = real_->Wait(ticket);
  Ended(ticket);
  return waited;
}

RunTrace::RunTrace(const Clock* clock, DeviceTimer timer, client::ChunkService* service,
                   const std::vector<Collective*>& groups)
    : clock_(clock), trace_(clock, std::move(timer)), service_(service, &trace_) {
  for (Collective* group : groups) {
    groups_.push_back(group != nullptr ? std::make_unique<TracedCollective>(group, &trace_)
                                       : nullptr);
  }
}

std::vector<Collective*> RunTrace::groups() const {
  std::vector<Collective*> groups;
  for (const auto& group : groups_) groups.push_back(group.get());
  return groups;
}

Status RunTrace::BeginServer(const std::string& socket_dir, const std::string& job) {
  ServerRecord record(clock_, socket_dir, job);
  TP_RETURN_IF_ERROR(record.Begin());
  server_.emplace(std::move(record));
  return {};
}

Status RunTrace::TakeServer() {
  if (!server_) return {};
  auto spans = server_->Take(trace_.from_ns());
  server_.reset();
  if (!spans.ok()) return spans.status();
  trace_.SetServer(std::move(spans).value());
  return {};
}

Status RunTrace::Write(const std::string& path, uint32_t rank) const {
  Status written = WriteWholeFile(path, trace_.Render(rank) + "\n");
  return written.ok() ? written : std::move(written).Where("--trace " + path);
}

}  // namespace tidepool::trainer
