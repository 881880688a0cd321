// PlacesUnderFaults: writes pieces to a few places of a file and reads them back, at random, and
// counts what came of it: a disk that fails in every way may lose what it has, but nothing that is
// read and believed is wrong.
//
// One thread. The file is the queue's number 0 and has kPlaces * kSampleBytes.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "nvme/page_memory.h"
#include "nvme/piece.h"
#include "nvme/transfer.h"
#include "tests/nvme/sample_piece.h"

namespace tidepool::nvme {

inline constexpr uint32_t kPlaces = 6;

struct Tally {
  uint64_t reads = 0, writes = 0, right = 0, wrong = 0, refused = 0, failed = 0, repetitions = 0;
};

class PlacesUnderFaults {
 public:
  // `wait` is called when there is nothing to do until time has passed or an answer has come.
  PlacesUnderFaults(uint64_t seed, IoQueue* queue, const Clock* clock, std::function<void()> wait)
      : random_(seed),
        transfers_(queue, clock, {.transfers_max = 4, .block_bytes = kPageBytes}),
        wait_(std::move(wait)),
        memory_(PageMemory::Map(kSampleBytes).value()),
        buffer_(memory_.bytes()) {}

  void Step() {
    const auto place = static_cast<uint32_t>(random_.Below(kPlaces));
    if (epochs_[place] == 0 || random_.Below(3) == 0) {
      Write(place);
    } else {
      Read(place);
    }
  }
  const Tally& tally() const { return tally_; }

 private:
  PieceName NameOf(uint32_t place, uint64_t epoch) const {
    return {.store = 1,
            .job = 2,
            .chunk = place,
            .piece = 0,
            .epoch = epoch,
            .place = place * kSampleBytes};
  }
  int Move(IoKind kind, uint32_t place) {
    transfers_.Start({kind, 0, place * kSampleBytes, buffer_.data(), kSampleBytes, 0});
    TransferDone done;
    while (!transfers_.Next(&done)) {
      if (!transfers_.Progress()) wait_();
    }
    tally_.repetitions += done.repetitions;
    if (done.error != 0) ++tally_.failed;
    return done.error;
  }
  // Epoch 0 of a place: nobody knows what lies there.
  void Write(uint32_t place) {
    ++tally_.writes;
    FillSample(NameOf(place, ++last_epoch_), buffer_.data());
    epochs_[place] = Move(IoKind::kWrite, place) == 0 ? last_epoch_ : 0;
  }
  void Read(uint32_t place) {
    ++tally_.reads;
    std::memset(buffer_.data(), 0x5a, buffer_.size());
    if (Move(IoKind::kRead, place) != 0) return;
    const PieceName name = NameOf(place, epochs_[place]);
    if (!VerifySample(name, buffer_.data())) {
      ++tally_.refused;
      epochs_[place] = 0;
      return;
    }
    std::vector<std::byte> expected(kSampleBytes);
    FillSample(name, expected.data());
    ++(std::memcmp(expected.data(), buffer_.data(), kSampleBytes) == 0 ? tally_.right
                                                                       : tally_.wrong);
  }

  SplitMix64 random_;
  TransferQueue transfers_;
  std::function<void()> wait_;
  PageMemory memory_;
  std::span<std::byte> buffer_;
  uint64_t epochs_[kPlaces] = {};
  uint64_t last_epoch_ = 0;
  Tally tally_;
};

}  // namespace tidepool::nvme
