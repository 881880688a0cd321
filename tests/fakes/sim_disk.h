// SimDisk: an IoQueue over files in memory that fails as disks do: with errors, by lying, and by
// losing power.
//
// One thread. Requests are carried out when they are reaped, in any order; all is decided by the
// seed. Bytes that were written and not flushed since are at stake in a power loss, sector by
// sector.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "nvme/io_queue.h"

namespace tidepool::nvme {

enum class DiskFault : uint32_t {
  kReadError,   // EIO, nothing was read
  kWriteError,  // EIO, nothing or a part was written
  kShort,       // fewer bytes than asked for
  kAgain,       // EAGAIN
  kInterrupted,
  kFlipInAnswer,  // one bit of what was read, once
  kFlipAtRest,    // one bit of what was written
  kLost,          // answered, not written
  kMisplaced,     // written elsewhere in the file
  kStall,         // answered many reaps later
  kNoSpace,       // ENOSPC
  kSyncError,     // EIO of a flush; what it should have flushed stays at stake
  kCount,
};

class SimDisk final : public IoQueue {
 public:
  static constexpr uint64_t kSectorBytes = 512;

  SimDisk(uint64_t seed, std::span<const uint64_t> file_bytes, uint32_t depth = 16);

  // One request in `odds` has this fault; 0: none.
  void Arm(DiskFault fault, uint32_t odds) { odds_[static_cast<size_t>(fault)] = odds; }
  // One reap in `odds` finds nothing yet; 0: all is done at once.
  void Pace(uint32_t odds) { pace_ = odds; }
  // What is asked of this file from now on, or the next request of this kind, is not answered until
  // Wake.
  void Hang(uint32_t file) { hangs_file_ = file; }
  void HangNext(IoKind kind) { hangs_next_ = kind; }
  void Wake();
  // The next flush of this file fails.
  void FailSyncOf(uint32_t file) { fails_sync_ = file; }
  uint64_t faults() const { return faults_total_; }
  uint64_t faults(DiskFault fault) const { return faults_[static_cast<size_t>(fault)]; }
  // Each sector that was not flushed is afterwards written, as it was before, torn or trash.
  // Requests that were out are gone.
  void LosePower();
  // Whoever asked is dead: what is out is carried out or not, and nobody is answered.
  void LoseOwner();
  // For a look behind the curtain.
  std::span<std::byte> bytes(uint32_t file) { return files_[file].now; }
  uint64_t requests() const { return requests_; }

  void Submit(const IoRequest& request) override;
  void Flush() override {}
  std::optional<IoDone> Reap() override;
  uint32_t depth() const override { return depth_; }
  int event_fd() const override { return -1; }
  void ClearEvent() override {}
  std::string Name() const override { return "a simulated disk"; }

 private:
  struct File {
    std::vector<std::byte> now;      // what a read sees
    std::vector<std::byte> durable;  // what is on the medium
    std::vector<bool> at_stake;      // by sector
    std::vector<uint32_t> stakes;    // the sectors of at_stake
  };
  struct Out {
    IoRequest request;
    uint32_t stalled = 0;  // reaps to wait
    bool hangs = false;
  };
  bool Strikes(DiskFault fault);
  int32_t Carry(const IoRequest& request);
  int32_t Read(const IoRequest& request);
  int32_t Write(const IoRequest& request);
  int32_t Sync(File* file);
  void Put(File* file, uint64_t offset, std::span<const std::byte> bytes);
  uint64_t Below(uint64_t limit) { return random_.Below(limit); }

  SplitMix64 random_;
  const uint32_t depth_;
  std::vector<File> files_;
  std::vector<Out> out_;
  std::array<uint32_t, static_cast<size_t>(DiskFault::kCount)> odds_{};
  std::array<uint64_t, static_cast<size_t>(DiskFault::kCount)> faults_{};
  uint64_t faults_total_ = 0;
  uint32_t pace_ = 0;
  std::optional<uint32_t> fails_sync_, hangs_file_;
  std::optional<IoKind> hangs_next_;
  uint64_t requests_ = 0;
};

}  // namespace tidepool::nvme
