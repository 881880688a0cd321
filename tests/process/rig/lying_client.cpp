#include "tests/process/rig/lying_client.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "shm/spec/encode.h"
#include "tests/fakes/real_clock.h"

namespace tidepool::testing {

namespace {

constexpr int64_t kLimit = 5 * kNsPerSecond;

}  // namespace

std::vector<shm::Frame> GreetingOf(const shm::JobSpec& spec, Rank rank) {
  const auto bytes = shm::Encode(spec);
  shm::HelloFrame hello;
  hello.protocols = shm::kOwnProtocols;
  hello.rank = rank;
  hello.world = spec.world;
  hello.pid = getpid();
  hello.spec_bytes = bytes.size();
  hello.fingerprint = shm::Fingerprint(bytes);
  hello.nonce = rank + 1;
  std::vector<shm::Frame> frames{hello};
  for (size_t at = 0; at < bytes.size(); at += shm::kPartBytesMax) {
    const size_t end = std::min(bytes.size(), at + shm::kPartBytesMax);
    frames.push_back(shm::SpecPartFrame{
        {bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(end)}});
  }
  return frames;
}

Result<std::unique_ptr<LyingClient>> LyingClient::Attach(const std::string& socket_dir,
                                                         const shm::JobSpec& spec, Rank rank) {
  TP_ASSIGN_OR_RETURN(client::ControlChannel channel,
                      client::ControlChannel::Open(RealClock(), socket_dir, kLimit));
  std::unique_ptr<LyingClient> liar(new LyingClient(std::move(channel)));
  for (const shm::Frame& frame : GreetingOf(spec, rank))
    TP_RETURN_IF_ERROR(liar->channel_.Send(frame, kLimit));
  TP_ASSIGN_OR_RETURN(client::ReceivedFrame answer, liar->channel_.Await(kLimit));
  if (const auto* refused = std::get_if<shm::RefusedFrame>(&answer.frame)) return refused->why;
  if (!std::holds_alternative<shm::WelcomeFrame>(answer.frame))
    return Status(ErrorId::kHandshakeBad, "no welcome");
  auto& fds = answer.fds;
  TP_ASSIGN_OR_RETURN(liar->submission_,
                      shm::Segment::Map(std::move(fds[shm::kFdSubmission]), shm::kChannelBytes,
                                        shm::PeerAccess::kReadWrite));
  TP_ASSIGN_OR_RETURN(liar->completion_,
                      shm::Segment::Map(std::move(fds[shm::kFdCompletion]), shm::kChannelBytes,
                                        shm::PeerAccess::kReadOnly));
  TP_ASSIGN_OR_RETURN(liar->rcache_,
                      shm::Segment::Map(std::move(fds[shm::kFdRcache]), spec.rcache_bytes,
                                        shm::PeerAccess::kReadWrite));
  liar->doorbell_ = std::move(fds[shm::kFdDoorbell]);
  return liar;
}

void LyingClient::Ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto n = write(doorbell_.get(), &one, sizeof one);
}

void LyingClient::Submit(shm::Request request) {
  if (request.counter == 0) request.counter = position_ + 1;
  const auto words = std::bit_cast<std::array<uint64_t, shm::kPayloadWords>>(request);
  shm::RingSlot* target = slot(position_ % shm::kRingEntries);
  for (uint32_t i = 0; i < shm::kPayloadWords; ++i) target->words[i].store(words[i]);
  target->sequence.store(++position_);
  Ring();
}

bool LyingClient::Await(shm::Completion* completion, int64_t timeout_ns) {
  const auto* ring = reinterpret_cast<const shm::RingSlot*>(completion_->data() + shm::kRingOffset);
  const shm::RingSlot& source = ring[completions_ % shm::kRingEntries];
  SteadyClock clock;
  const int64_t limit = clock.NowNs() + timeout_ns;
  while (source.sequence.load() != completions_ + 1) {
    if (clock.NowNs() > limit) return false;
    clock.SleepNs(kNsPerMs / 10);
  }
  std::array<uint64_t, shm::kPayloadWords> words;
  for (uint32_t i = 0; i < shm::kPayloadWords; ++i) words[i] = source.words[i].load();
  *completion = std::bit_cast<shm::Completion>(words);
  header()->completions_consumed.store(++completions_);
  return true;
}

Status LyingClient::AwaitEnd() {
  auto received = channel_.Await(kLimit);
  if (!received.ok()) return received.status();
  const auto* ended = std::get_if<shm::EndedFrame>(&received->frame);
  return ended != nullptr ? ended->why : Status(ErrorId::kInternal, "another frame came");
}

Status LyingClient::PutAllWeights(const shm::JobSpec& spec, Rank rank) {
  for (ChunkId chunk = 0; chunk < spec.chunks.size(); ++chunk) {
    shm::Request request{};
    request.op = static_cast<uint32_t>(shm::Op::kPutWeights);
    request.chunk = chunk;
    request.element_begin = spec.ShardElements(chunk) * spec.ShardIndex(chunk, rank);
    request.element_count = spec.ShardElements(chunk);
    Submit(request);
    shm::Completion completion{};
    if (!Await(&completion, kLimit)) return AwaitEnd();
    if (completion.error != 0)
      return Status(static_cast<ErrorId>(completion.error), "weights were refused");
  }
  return Status();
}

}  // namespace tidepool::testing
