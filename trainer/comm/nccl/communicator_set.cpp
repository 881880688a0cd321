#include "trainer/comm/nccl/communicator_set.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kAbortPollNs = 100'000;

// An error has no one to be reported to.
void Abort(const NcclTable* nccl, void* communicator, std::atomic<uint64_t>* left) {
  static_cast<void>(nccl->comm_abort(communicator));
  left->fetch_sub(1, std::memory_order_release);
}

}  // namespace

void CommunicatorSet::Add(void* communicator) {
  if (communicator != nullptr) communicators_.insert(communicator);
}

void CommunicatorSet::AbortAll() {
  const std::set<void*> all = std::exchange(communicators_, {});
  if (all.empty()) return;

  // Shared with the threads, because one may stay in NCCL longer than this call.
  const auto left = std::make_shared<std::atomic<uint64_t>>(all.size());
  for (void* communicator : all) {
    const auto give_up = [nccl = nccl_, communicator, left] {
      Abort(nccl, communicator, left.get());
    };

    try {
      if (TP_PLANTED("comm.aborted_in_turn")) {
        give_up();
        continue;
      }
      std::thread(give_up).detach();
    } catch (const std::system_error& error) {
      LogWarn("no thread to end a communicator with: it is ended by the main thread",
              {{"why", error.what()}});
      give_up();
    }
  }

  const int64_t until = clock_->NowNs() + deadline_ns_;
  while (left->load(std::memory_order_acquire) > 0) {
    if (clock_->NowNs() >= until) {
      return LogWarn("NCCL does not end communicators whose peers are lost: they are left to it",
                     {{"communicators", left->load()}});
    }
    clock_->SleepNs(kAbortPollNs);
  }
}

}  // namespace tidepool::trainer
