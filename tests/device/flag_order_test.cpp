// Flags order copies between two parties that enqueue ahead of each other, in both directions: as a
// trainer and a server do, in one process, under random interleavings.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/random.h"
#include "tests/device/form_test.h"

namespace tidepool::device {
namespace flag_order_test {

constexpr uint64_t kSlots = 512, kWindow = 16, kBlocks = 5, kWords = 8,
                   kRecord = kWords * sizeof(uint64_t);

#ifdef TIDEPOOL_SANITIZED
constexpr uint64_t kExchanges = 2'000;
#else
constexpr uint64_t kExchanges = 10'000;
#endif

struct Exchange {
  bool fetch = false;  // host to block; else block to host
  uint64_t block = 0;
  bool served = false;
};

class FlagOrder : public FormTest {
 protected:
  uint64_t exchanges() const { return GetParam().gpu ? kExchanges : kExchanges / 5; }

  void Prepare() {
    const uint64_t words = exchanges() * kWords;
    given_ = Host<uint64_t>(words);  // to be fetched
    cells_host_ = Host<uint64_t>(words);
    taken_ = Host<uint64_t>(words);  // what was submitted
    for (uint64_t i = 0; i < exchanges(); ++i) {
      std::fill_n(&given_[i * kWords], kWords, random_.Next());
      std::fill_n(&cells_host_[i * kWords], kWords, random_.Next());
    }
    cells_ = BlockOf(cells_host_.data(), cells_host_.size_bytes());  // to be submitted
    seen_ = Block(words * sizeof(uint64_t));                         // what was fetched
    blocks_ = Block(kBlocks * kRecord);
    ready_ = Host<Flag>(kSlots).data();
    done_ = Host<Flag>(kSlots).data();
    used_ = Host<Flag>(kBlocks).data();
    for (auto& stream : trainer_) stream = Open();
    to_device_ = Open();
    to_host_ = Open();
  }

  // The trainer's streams: no CPU waits for anything.
  void Enqueue() {
    const uint64_t i = exchanges_.size(), counter = i + 1, slot = counter % kSlots;
    const Exchange exchange{.fetch = random_.Next() % 2 == 0, .block = random_.Next() % kBlocks};
    Stream* const stream = trainer_[random_.Next() % trainer_.size()].get();
    std::byte* const block = blocks_ + exchange.block * kRecord;
    stream->WaitFlag(&used_[exchange.block], last_use_[exchange.block]);
    if (!exchange.fetch) stream->Copy(block, cells_ + i * kRecord, kRecord);
    stream->WriteFlag(&ready_[slot], counter);
    stream->WaitFlag(&done_[slot], counter);
    if (exchange.fetch) stream->Copy(seen_ + i * kRecord, block, kRecord);
    stream->WriteFlag(&used_[exchange.block], counter);
    last_use_[exchange.block] = counter;
    exchanges_.push_back(exchange);
  }

  // The server's CPU looks at one request; its streams never wait.
  void Serve(uint64_t i) {
    Exchange& exchange = exchanges_[i];
    const uint64_t counter = i + 1, slot = counter % kSlots;
    if (exchange.served ||
        static_cast<int64_t>(ready_[slot].load(std::memory_order_acquire) - counter) < 0)
      return;
    exchange.served = true;
    std::byte* const block = blocks_ + exchange.block * kRecord;
    Stream* const stream = exchange.fetch ? to_device_.get() : to_host_.get();
    if (exchange.fetch) {
      stream->Copy(block, &given_[i * kWords], kRecord);
    } else {
      stream->Copy(&taken_[i * kWords], block, kRecord);
    }
    stream->WriteFlag(&done_[slot], counter);
  }

  bool Finished(uint64_t i) const {
    const uint64_t counter = i + 1;
    return static_cast<int64_t>(done_[counter % kSlots].load(std::memory_order_acquire) -
                                counter) >= 0;
  }

  // One step of somebody; false when all is done.
  bool Step() {
    while (oldest_ < exchanges_.size() && Finished(oldest_)) ++oldest_;
    if (oldest_ == exchanges()) return false;
    const uint64_t dice = random_.Next() % 8;
    const bool room = exchanges_.size() < exchanges() && exchanges_.size() - oldest_ < kWindow;
    if (dice < 3 && room) Enqueue();
    if (dice >= 3 && oldest_ < exchanges_.size())
      Serve(oldest_ + random_.Next() % (exchanges_.size() - oldest_));
    for (Stream* stream : {trainer_[dice % 2].get(), to_device_.get(), to_host_.get()})
      stream->Progress(kRecord);
    return true;
  }

  SplitMix64 random_{2026};
  std::span<uint64_t> given_, cells_host_, taken_;
  std::byte *cells_ = nullptr, *seen_ = nullptr, *blocks_ = nullptr;
  Flag *ready_ = nullptr, *done_ = nullptr, *used_ = nullptr;
  std::array<uint64_t, kBlocks> last_use_{};
  std::array<std::unique_ptr<Stream>, 2> trainer_;
  std::unique_ptr<Stream> to_device_, to_host_;
  std::vector<Exchange> exchanges_;
  uint64_t oldest_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Forms, FlagOrder, ::testing::ValuesIn(FormsToTest()), NameOfForm);

TEST_P(FlagOrder, EveryCopySeesWhatTheOtherSideMeant) {
  Prepare();
  ASSERT_TRUE(Drive({}, [&] {
    for (int i = 0; i < 200; ++i) {
      if (!Step()) return true;
    }
    return false;
  }));
  for (auto& stream : trainer_) {
    stream->Synchronize(stream->Record());
    EXPECT_TRUE(stream->status().ok()) << stream->status().Format();
  }
  const std::vector<uint64_t> seen = Read<uint64_t>(seen_, exchanges() * kWords);
  uint64_t fetched = 0;
  for (uint64_t i = 0; i < exchanges(); ++i) {
    const bool fetch = exchanges_[i].fetch;
    fetched += fetch;
    for (uint64_t word = i * kWords; word < (i + 1) * kWords; ++word) {
      ASSERT_EQ(fetch ? seen[word] : taken_[word], fetch ? given_[word] : cells_host_[word])
          << i << (fetch ? " fetched" : " submitted");
    }
  }
  EXPECT_GT(fetched, exchanges() / 3);
  EXPECT_LT(fetched, exchanges() * 2 / 3);
}

}  // namespace flag_order_test
}  // namespace tidepool::device
