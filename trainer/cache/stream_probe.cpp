#include "trainer/cache/stream_probe.h"

#include <utility>

#include "base/units.h"
#include "trainer/comm/nccl/registered_host.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kProbeLookNs = 20'000;
constexpr int64_t kHeldUpNs = kNsPerSecond / 3;
constexpr int64_t kStuckNs = 10 * kNsPerSecond;

template <typename Condition>
bool Within(Clock* clock, int64_t limit_ns, const Condition& condition) {
  for (const int64_t end_ns = clock->NowNs() + limit_ns; !condition();) {
    if (clock->NowNs() > end_ns) return false;
    clock->SleepNs(kProbeLookNs);
  }
  return true;
}

// One round: `waits` waits for words[0], every other stream writes its own word.
struct Round {
  std::span<device::Stream* const> streams;
  device::Flag* words;
  Clock* clock;

  bool AllWritten(size_t waits, uint64_t value) const {
    bool all = true;
    for (size_t i = 0; i < streams.size(); ++i) {
      streams[i]->Progress(kPageBytes);
      all &= i == waits || words[1 + i].load(std::memory_order_acquire) == value;
    }
    return all;
  }

  Status Failure() const {
    for (const device::Stream* stream : streams) TP_RETURN_IF_ERROR(stream->status());
    return {};
  }

  Result<bool> Run(size_t waits) const {
    const uint64_t value = waits + 1;
    streams[waits]->WaitFlag(&words[0], value);
    for (size_t i = 0; i < streams.size(); ++i) {
      if (i != waits) streams[i]->WriteFlag(&words[1 + i], value);
    }

    const bool beside =
        Within(clock, kHeldUpNs, [&] { return AllWritten(waits, value) || !Failure().ok(); });
    words[0].store(value, std::memory_order_release);
    const device::Stream::Marker end = streams[waits]->Record();
    const bool ended = Within(clock, kStuckNs, [&] {
      return (AllWritten(waits, value) && streams[waits]->Passed(end)) || !Failure().ok();
    });

    TP_RETURN_IF_ERROR(Failure());
    if (!ended)
      return Status(ErrorId::kCudaFailed,
                    "a stream of the GPU waits for a flag that has been written");
    return beside;
  }
};

}  // namespace

Result<bool> RunBesideEachOther(device::Device* device, std::span<device::Stream* const> streams,
                                Clock* clock) {
  TP_ASSIGN_OR_RETURN(RegisteredHost words, RegisteredHost::Create(device, kPageBytes));
  const Round round{streams, reinterpret_cast<device::Flag*>(words.data()), clock};
  bool beside = true;

  for (size_t waits = 0; waits < streams.size(); ++waits) {
    const Result<bool> passed = round.Run(waits);
    if (!passed.ok()) {
      words.Abandon();  // a stream may still wait
      return passed.status();
    }
    beside &= passed.value();
  }
  return beside;
}

}  // namespace tidepool::trainer
