#include "bench/ring_throughput.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/lockfree/policies.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <memory>
#include <thread>

#include "bench/harness/crew.h"
#include "bench/harness/rounds.h"
#include "shm/messages.h"
#include "shm/port.h"

namespace tidepool::bench {
namespace {

constexpr size_t kPlaces = 1024;
constexpr uint64_t kBatch = 16;

struct alignas(64) Message {
  uint64_t words[8];
};

// Two positions, each in its own cache line, with the other side's read at every step.
class IndexRing {
 public:
  bool Push(uint64_t number) {
    const uint64_t at = pushed_.load(std::memory_order_relaxed);
    if (at - popped_.load(std::memory_order_acquire) == kPlaces) return false;
    places_[at % kPlaces] = {{number, 1, 2, 3, 4, 5, 6, 7}};
    pushed_.store(at + 1, std::memory_order_release);
    return true;
  }
  bool Pop(uint64_t* number) {
    const uint64_t at = popped_.load(std::memory_order_relaxed);
    if (pushed_.load(std::memory_order_acquire) == at) return false;
    const Message message = places_[at % kPlaces];
    popped_.store(at + 1, std::memory_order_release);
    *number = message.words[0] + message.words[7] - 7;
    return true;
  }

 private:
  alignas(64) std::atomic<uint64_t> pushed_{0};
  alignas(64) std::atomic<uint64_t> popped_{0};
  std::array<Message, kPlaces> places_{};
};

class BoostRing {
 public:
  bool Push(uint64_t number) { return queue_.push({{number, 1, 2, 3, 4, 5, 6, 7}}); }
  bool Pop(uint64_t* number) {
    Message message;
    if (!queue_.pop(message)) return false;
    *number = message.words[0] + message.words[7] - 7;
    return true;
  }

 private:
  boost::lockfree::spsc_queue<Message, boost::lockfree::capacity<kPlaces>> queue_;
};

// The submission ring of a session, with every position and word checked as in the daemon.
class ProductRing {
 public:
  ProductRing() : server_(OrDie(shm::ServerPort::Create(1))) {
    const auto copy = [](int fd) { return UniqueFd(dup(fd)); };
    client_ =
        OrDie(shm::ClientPort::Map(copy(server_->submission_fd()), copy(server_->completion_fd()),
                                   copy(server_->doorbell_fd())));
  }
  bool Push(uint64_t number) {
    shm::Request request{};
    request.counter = number;
    request.element_count = 7;
    // Like real requests: several at once, and one doorbell check for them.
    return client_->Push(request, number % kBatch + 1 < kBatch ? shm::More::kYes : shm::More::kNo);
  }
  bool Pop(uint64_t* number) {
    shm::Request request{};
    const shm::PopResult popped = server_->Pop(&request);
    if (popped == shm::PopResult::kViolation) Die("the ring broke");
    *number = request.counter + request.element_count - 7;
    return popped == shm::PopResult::kItem;
  }

 private:
  std::unique_ptr<shm::ServerPort> server_;
  std::unique_ptr<shm::ClientPort> client_;
};

// The limit of two cores: blocks of lines, each announced by one word.
class BlockRing {
 public:
  void Push(uint64_t block) {
    while (block - popped_.load(std::memory_order_acquire) == kBlocks) __builtin_ia32_pause();
    for (uint64_t i = 0; i < kBatch; ++i)
      blocks_[block % kBlocks][i] = {{block * kBatch + i, 1, 2, 3, 4, 5, 6, 7}};
    pushed_.store(block + 1, std::memory_order_release);
  }
  // The sum of the numbers in the block.
  uint64_t Pop(uint64_t block) {
    while (pushed_.load(std::memory_order_acquire) == block) __builtin_ia32_pause();
    uint64_t sum = 0;
    for (const Message& message : blocks_[block % kBlocks])
      sum += message.words[0] + message.words[7] - 7;
    popped_.store(block + 1, std::memory_order_release);
    return sum;
  }

 private:
  static constexpr uint64_t kBlocks = kPlaces / kBatch;
  alignas(64) std::atomic<uint64_t> pushed_{0};
  alignas(64) std::atomic<uint64_t> popped_{0};
  std::array<std::array<Message, kBatch>, kBlocks> blocks_{};
};

void SendBlocks(uint64_t messages, const TwoCores& cores) {
  const auto ring = std::make_unique<BlockRing>();
  const uint64_t blocks = messages / kBatch;

  std::thread consumer([&] {
    PinTo({cores.other});
    uint64_t sum = 0;
    for (uint64_t block = 0; block < blocks; ++block) sum += ring->Pop(block);
    const uint64_t count = blocks * kBatch;
    if (sum != count * (count - 1) / 2) Die("a line was lost, or came twice");
  });

  const std::vector<int> before = AllowedCpus();
  PinTo({cores.mine});
  for (uint64_t block = 0; block < blocks; ++block) ring->Push(block);
  consumer.join();
  PinTo(before);
}

template <typename Ring>
void Send(uint64_t messages, const TwoCores& cores, Ring* ring) {
  std::thread consumer([&] {
    PinTo({cores.other});
    uint64_t number = 0;
    for (uint64_t next = 0; next < messages; ++next) {
      while (!ring->Pop(&number)) __builtin_ia32_pause();
      if (number != next) Die("a message was lost, or came twice");
    }
  });

  const std::vector<int> before = AllowedCpus();
  PinTo({cores.mine});
  for (uint64_t next = 0; next < messages; ++next) {
    while (!ring->Push(next)) __builtin_ia32_pause();
  }
  consumer.join();
  PinTo(before);
}

}  // namespace

void MeasureThroughput(const ThroughputOptions& options, const TwoCores& cores,
                       RowPrinter* printer) {
  Rounds rounds;
  const uint64_t count = options.messages;
  const auto product_ring = std::make_unique<ProductRing>();
  const auto boost_ring = std::make_unique<BoostRing>();
  const auto index_ring = std::make_unique<IndexRing>();

  const size_t product = rounds.AddWay([&] { Send(count, cores, product_ring.get()); });
  const size_t boost = rounds.AddWay([&] { Send(count, cores, boost_ring.get()); });
  const size_t index = rounds.AddWay([&] { Send(count, cores, index_ring.get()); });
  const size_t blocks = rounds.AddWay([&] { SendBlocks(count, cores); });
  rounds.Run(options.rounds);

  std::vector<double> ratios;
  for (uint64_t i = 0; i < options.rounds; ++i) {
    ratios.push_back(std::min(rounds.seconds(boost)[i], rounds.seconds(index)[i]) /
                     rounds.seconds(product)[i]);
  }

  const auto rate = [&](size_t way) {
    return static_cast<double>(count) / rounds.median(way) / 1e6;
  };

  AddComparison({.bench = "ring",
                 .row = "ring, one way",
                 .value = rate(product),
                 .unit = "M messages/s",
                 .against = "the better of Boost.Lockfree spsc_queue and a plain index ring",
                 .ratios = ratios,
                 .target = 1.5},
                printer);

  for (const auto& [name, way] : {std::pair{"Boost.Lockfree spsc_queue, one way", boost},
                                  std::pair{"plain index ring, one way", index},
                                  std::pair{"lines in blocks of 16, one way", blocks}}) {
    printer->Add({.bench = "ring",
                  .row = name,
                  .value = rate(way),
                  .unit = "M messages/s",
                  .against = "",
                  .ratio = {},
                  .target = {}});
  }
}

}  // namespace tidepool::bench
