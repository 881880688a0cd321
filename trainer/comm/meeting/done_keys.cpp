#include "trainer/comm/meeting/done_keys.h"

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/log.h"
#include "trainer/comm/meeting/first_line.h"

namespace tidepool::trainer {
namespace {

constexpr std::chrono::seconds kAnswerWithin(10);

// Runs `body` with the store; a store failure is only logged, since it matters only after a later
// death.
template <typename Body>
void WithStore(const Rendezvous& meet, const std::string& job, Body&& body) {
  try {
    c10d::TCPStoreOptions options;
    options.port = meet.port;
    options.waitWorkers = false;
    options.timeout = kAnswerWithin;

    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        "tidepool/done/" + job, c10::make_intrusive<c10d::TCPStore>(meet.host, options));
    body(store.get());
  } catch (const std::exception& error) {
    LogWarn("torchrun's store does not answer",
            {{"host", meet.host}, {"port", meet.port}, {"why", FirstLine(error.what())}});
  }
}

}  // namespace

void DoneKeys::Set() const {
  WithStore(meet_, job_, [this](c10d::Store* store) {
    store->set(std::to_string(meet_.rank), std::vector<uint8_t>{1});
  });
}

void DoneKeys::Clear() const {
  WithStore(meet_, job_,
            [this](c10d::Store* store) { store->deleteKey(std::to_string(meet_.rank)); });
}

bool DoneKeys::AllSet() const {
  bool all = false;
  WithStore(meet_, job_, [&](c10d::Store* store) {
    std::vector<std::string> keys;
    for (uint32_t rank = 0; rank < meet_.world; ++rank) keys.push_back(std::to_string(rank));
    all = store->check(keys);
  });
  return all;
}

}  // namespace tidepool::trainer
