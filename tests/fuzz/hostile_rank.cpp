#include "tests/fuzz/hostile_rank.h"

#include <fcntl.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "shm/step_numbers.h"

namespace tidepool::memserver {

using fuzz::FuzzInput;
using fuzz::OddNumber;

void HostileRank::Join(const shm::JobSpec& spec) {
  rank_side_ = world_->Join(spec, rank_);
  if (here()) MapRing();
}

void HostileRank::Resume(const shm::JobSpec& spec) {
  if (!here()) return;
  if (world_->Resume(rank_side_.get(), spec)) {
    MapRing();
  } else {
    Forget();
  }
}

void HostileRank::MapRing() {
  counter_ = 0;
  ring_.reset();
  if (slot() == nullptr || slot()->session == nullptr) return Forget();
  UniqueFd fd(fcntl(slot()->session->port().submission_fd(), F_DUPFD_CLOEXEC, 0));
  auto mapped = shm::Segment::Map(std::move(fd), shm::kChannelBytes, shm::PeerAccess::kReadWrite);
  TP_CHECK(mapped.ok(), "a client maps its ring");
  ring_ = std::move(mapped).value();
}

shm::Request HostileRank::DueFrozen(FuzzInput* input, const Job& job) {
  const auto index = input->Choice(static_cast<uint32_t>(job.spec().frozen.size()));
  const auto id = static_cast<ChunkId>(job.spec().chunks.size() + index);
  const FrozenChunk& chunk = *job.states->frozen(id).chunk;
  const uint64_t element = BytesOf(job.spec().frozen[index].dtype),
                 elements = chunk.name.bytes / element;
  const bool uploads = chunk.uploader != 0 && chunk.started < chunk.name.bytes;
  const uint64_t begin = uploads ? chunk.started / element : 0;
  const uint64_t count = input->OneIn(3) ? (elements - begin + 1) / 2 : elements - begin;
  switch (uploads && !input->OneIn(4) ? 0 : input->Choice(5)) {
    case 0: return FakeRank::PutRequest(id, begin, count, input->Choice(4) * 1024);
    case 1: return FakeRank::FetchRequest(id, begin, count, input->Choice(4) * 1024, 0);
    case 2: return FakeRank::SubmitRequest({.chunk = id, .begin = begin, .count = count});
    default: return FakeRank::ClaimRequest(id);
  }
}

shm::Request HostileRank::DueNumbers(FuzzInput* input, const Job& job) {
  const shm::JobSpec& spec = job.spec();
  const Version version = job.states->sealed_version();
  if (input->OneIn(4))
    return shm::StepFactsRequestOf({.loss = std::nanf(""), .tokens = input->Choice(4)}, version);
  if (input->OneIn(2)) {
    const uint32_t group = input->Choice(static_cast<uint32_t>(spec.parameter_groups.size()));
    return shm::GroupNumbersRequestOf(group, NumbersOf(spec.optimizer, 0.01F, 0.1F), version);
  }
  std::vector<uint64_t> set(shm::WordsOfSet(spec.parameters.size()));
  set[0] = uint64_t{1} << input->Choice(static_cast<uint32_t>(spec.parameters.size()));
  return shm::UntouchedRequestsOf(set, spec.parameters.size(), version).front();
}

shm::Request HostileRank::DueRequest(FuzzInput* input, const Job& job) {
  if (!job.spec().frozen.empty() && input->Peek() % 5 == 4) return DueFrozen(input, job);
  const shm::JobSpec& spec = job.spec();
  JobStates& states = *job.states;
  shm::Request request{};
  request.chunk = input->Choice(static_cast<uint32_t>(spec.chunks.size()));
  const ShardIntake& intake = states.intake(request.chunk, rank_);
  const uint64_t shard = spec.ShardElements(request.chunk);
  request.element_begin = states.ShardBegin(request.chunk, rank_);
  request.element_count = shard;
  request.rcache_offset = input->Choice(4) * 4096;
  request.version = states.sealed_version();
  request.op = static_cast<uint32_t>(shm::Op::kPutWeights);
  if (!states.weights_ready() && intake.put_elements < shard) {
    request.element_begin += intake.put_elements;
    request.element_count =
        input->OneIn(3) ? (shard - intake.put_elements + 1) / 2 : shard - intake.put_elements;
    return request;
  }
  if (input->OneIn(3)) {
    request.op = static_cast<uint32_t>(shm::Op::kFetch);
    request.version += input->OneIn(3) ? 1 : 0;
    return request;
  }
  for (request.chunk = 0; request.chunk < spec.chunks.size(); ++request.chunk) {
    const ShardIntake& next = states.intake(request.chunk, rank_);
    if (next.micro_batches_accepted == spec.micro_batches) continue;
    request.op = static_cast<uint32_t>(shm::Op::kSubmitGradient);
    request.element_begin = states.ShardBegin(request.chunk, rank_);
    request.element_count = spec.ShardElements(request.chunk);
    request.micro_batch = next.micro_batches_accepted;
    return request;
  }
  if (input->OneIn(3)) return DueNumbers(input, job);
  shm::EndStepRequest end{};
  end.op = static_cast<uint32_t>(shm::Op::kEndStep);
  end.version = states.sealed_version();
  end.learning_rate = 0.01F;
  end.loss_scale = 1;
  return shm::AsRequest(end);
}

void HostileRank::SendRequest(FuzzInput* input) {
  const SessionSlot* at = slot();
  if (at == nullptr || at->job->phase != JobPhase::kOpen) return;
  shm::Request request = DueRequest(input, *at->job);
  if (input->OneIn(4)) {
    auto words = std::bit_cast<std::array<uint32_t, shm::kPayloadBytes / 4>>(request);
    for (uint32_t odd = 1 + input->Choice(2); odd > 0; --odd) {
      uint32_t& word = words[2 + input->Choice(words.size() - 2)];
      word = static_cast<uint32_t>(OddNumber(input, word));
    }
    request = std::bit_cast<shm::Request>(words);
  }
  if (input->OneIn(8)) {
    const uint32_t attempt = at->job->states->attempt();
    request.flags = shm::kResubmitted;
    if (input->OneIn(2))
      request.flags |= shm::FlagsOfAttempt(static_cast<uint32_t>(OddNumber(input, attempt)));
  }
  request.counter = counter_ + 1;
  if (input->OneIn(32)) request.counter = OddNumber(input, request.counter);
  if (rank_side_->port().Push(request)) ++counter_;
}

void HostileRank::WriteSlot(FuzzInput* input) {
  const uint64_t position =
      input->OneIn(3) ? input->Number<uint16_t>() % shm::kRingEntries : counter_ + input->Choice(3);
  auto* slot = reinterpret_cast<shm::RingSlot*>(ring_->data() + shm::kRingOffset) +
               position % shm::kRingEntries;
  for (uint32_t words = input->Choice(4); words > 0; --words) {
    std::atomic<uint64_t>& word = slot->words[input->Choice(shm::kPayloadWords)];
    word.store(OddNumber(input, word.load()));
  }
  if (input->OneIn(2))
    slot->sequence.store(input->OneIn(4) ? OddNumber(input, position + 1) : position + 1);
}

void HostileRank::WriteHeader(FuzzInput* input) {
  auto* header = reinterpret_cast<shm::SubmissionHeader*>(ring_->data());
  switch (input->Choice(3)) {
    case 0:
      return header->completions_consumed.store(
          OddNumber(input, header->completions_consumed.load()));
    case 1: return header->client_waiting.store(input->Number<uint32_t>());
    default: Disturb(input, 4, {ring_->data(), shm::kRingOffset});
  }
}

void HostileRank::FillRcache(FuzzInput* input) {
  // One, infinity, NaN, denormal.
  constexpr std::array<uint32_t, 5> kPatterns{0, 0x3c003c00, 0x7f807f80, 0xffffffff, 0x00010001};
  const uint32_t pattern = kPatterns[input->Choice(kPatterns.size())];
  for (uint32_t i = 0; i < 8192 / sizeof pattern; ++i) rank_side_->At<uint32_t>(0)[i] = pattern;
}

void HostileRank::TakeSome(uint32_t count) {
  while (count-- > 0 && rank_side_->Take()) {
  }
}

}  // namespace tidepool::memserver
