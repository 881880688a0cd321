#include "tests/fakes/flag_chunk_service.h"

#include <algorithm>
#include <thread>

#include "base/units.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::testing {
namespace {

// In a row: who asks so often puts nothing new into any stream.
constexpr uint64_t kIdleTestsMax = 1000;

}  // namespace

FlagChunkService::FlagChunkService(MemoryServer* server, const FlagServiceSetup& setup)
    : MemoryChunkService(server, setup.rank,
                         {.rcache_bytes = setup.rcache_bytes,
                          .bytes_before = 2 * kPageBytes,
                          .seed = setup.seed,
                          .device = setup.device}),
      alone_(setup.alone),
      device_(setup.device),
      host_({.clock = RealClock(), .copy_threads = setup.copy_threads}) {
  attachment_.flags = pages();
  attachment_.flags_bytes = 2 * kPageBytes;
}

device::Stream* FlagChunkService::OpenStream() {
  streams_.push_back(std::move(device()->OpenStream()).value());
  device::Stream* stream = streams_.back().get();
  // Pieces of a copy, or a few flags at a time.
  AddActor([this, stream] { return stream->Progress(1 + random_.Below(700)); });
  return stream;
}

client::TicketFlags FlagChunkService::FlagsOf(client::Ticket ticket) const {
  auto* words = reinterpret_cast<device::Flag*>(attachment_.flags);
  const uint64_t slot = ticket % client::kTicketsMax;
  return {words + slot, words + kPageBytes / sizeof(device::Flag) + slot, ticket};
}

Status FlagChunkService::Take(Request*) {
  if (last_ + 1 >= fail_from_) End(Status(ErrorId::kServerGone, "the server is gone"));
  if (!over_.ok()) return over_;
  const bool twice =
      !requests_.empty() && last_ + 1 - requests_.begin()->first >= client::kTicketsMax;
  return twice ? Status(ErrorId::kProtocolViolation, "a flag word is used twice") : Status();
}

bool FlagChunkService::CanServe(client::Ticket ticket, const Request& request) const {
  if (request.answered || (request.kind == Kind::kFetch && !server_->Exists(request.version)))
    return false;
  return request.kind == Kind::kPut || *FlagsOf(ticket).ready >= ticket;
}

void FlagChunkService::Serve(client::Ticket ticket, Request* request) {
  if (ticket == fail_answer_) return End(Status(ErrorId::kServerGone, "the server went away"));
  if (ticket == refuse_) {
    request->answered = true;
    request->answer = Status(ErrorId::kProtocolViolation, "refused");
    return;
  }
  if (!request->begun) {
    request->begun = true;
    if (request->kind == Kind::kFetch) SpoilRange(request->range);
    return;
  }
  request->answer = CarryOut(*request);
  if (!request->answer.ok()) return End(request->answer);
  request->answered = true;
  if (request->kind != Kind::kPut) FlagsOf(ticket).done->store(ticket);
}

void FlagChunkService::End(const Status& why) {
  if (!over_.ok()) return;
  over_ = why;
  for (auto& [ticket, request] : requests_) {
    if (request.answered) continue;
    request.answered = true;
    request.answer = why;
  }
  for (uint64_t slot = 0; slot < client::kTicketsMax; ++slot)
    FlagsOf(slot).done->store(device::kFlagPoison);
}

bool FlagChunkService::Step() {
  std::vector<client::Ticket> servable;
  for (const auto& [ticket, request] : requests_) {
    if (CanServe(ticket, request)) servable.push_back(ticket);
  }
  const size_t choices = actors_.size() + servable.size();
  const size_t first = random_.Below(std::max<size_t>(choices, 1));
  for (size_t i = 0; i < choices; ++i) {
    const size_t choice = (first + i) % choices;
    if (choice >= actors_.size()) {
      const client::Ticket ticket = servable[choice - actors_.size()];
      Serve(ticket, &requests_.at(ticket));
      return true;
    }
    if (actors_[choice]()) return true;
  }
  return false;
}

bool FlagChunkService::Drive(const std::function<bool()>& passed) {
  while (!passed()) {
    if (Step()) continue;
    if (alone_) return false;
    if (over_.ok() && server_->broken()) End(Status(ErrorId::kPeerLost, "another rank has failed"));
    std::this_thread::yield();
  }
  return true;
}

bool FlagChunkService::Test(client::Ticket ticket) {
  for (uint64_t steps = 1 + random_.Below(3); steps > 0; --steps) {
    if (Step()) {
      idle_ = 0;
      continue;
    }
    if (!alone_) {
      if (over_.ok() && server_->broken())
        End(Status(ErrorId::kPeerLost, "another rank has failed"));
      std::this_thread::yield();
    } else if (!requests_.at(ticket).answered && ++idle_ > kIdleTestsMax) {
      End(Status(ErrorId::kInternal,
                 "everything waits, ticket " + std::to_string(ticket) + " is asked for in vain"));
    }
    break;
  }
  return requests_.at(ticket).answered;
}

Result<client::Outcome> FlagChunkService::Wait(client::Ticket ticket) {
  blocked_waits_ += !requests_.at(ticket).answered;
  if (!Drive([&] { return requests_.at(ticket).answered; })) {
    End(Status(ErrorId::kInternal,
               "everything waits, ticket " + std::to_string(ticket) + " is not answered"));
  }
  const Request request = std::move(requests_.at(ticket));
  requests_.erase(ticket);
  if (!request.answer.ok()) return request.answer;
  return OutcomeOf(request);
}

}  // namespace tidepool::testing
