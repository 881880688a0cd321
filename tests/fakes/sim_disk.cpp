#include "tests/fakes/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tidepool::nvme {

SimDisk::SimDisk(uint64_t seed, std::span<const uint64_t> file_bytes, uint32_t depth)
    : random_(seed), depth_(depth) {
  for (const uint64_t bytes : file_bytes) {
    files_.push_back({.now = std::vector<std::byte>(bytes),
                      .durable = std::vector<std::byte>(bytes),
                      .at_stake = std::vector<bool>(bytes / kSectorBytes),
                      .stakes = {}});
  }
}

bool SimDisk::Strikes(DiskFault fault) {
  const auto i = static_cast<size_t>(fault);
  if (odds_[i] == 0 || Below(odds_[i]) != 0) return false;
  ++faults_[i];
  ++faults_total_;
  return true;
}

void SimDisk::Submit(const IoRequest& request) {
  TP_CHECK(out_.size() < depth_, "no more requests are out than the queue has places");
  TP_CHECK(request.file < files_.size() &&
               request.offset + request.bytes <= files_[request.file].now.size(),
           "a request lies in its file");
  ++requests_;
  out_.push_back({request, Strikes(DiskFault::kStall) ? 200u : 0u,
                  request.file == hangs_file_ || request.kind == hangs_next_});
  if (request.kind == hangs_next_) hangs_next_.reset();
}

void SimDisk::Wake() {
  hangs_file_.reset();
  hangs_next_.reset();
  for (Out& out : out_) out.hangs = false;
}

std::optional<IoDone> SimDisk::Reap() {
  if (out_.empty() || (pace_ != 0 && Below(pace_) == 0)) return std::nullopt;
  const size_t index = Below(out_.size());
  if (out_[index].hangs) return std::nullopt;
  if (out_[index].stalled > 0) {
    --out_[index].stalled;
    return std::nullopt;
  }
  const IoRequest request = out_[index].request;
  out_.erase(out_.begin() + static_cast<std::ptrdiff_t>(index));
  return std::optional<IoDone>(IoDone{request.tag, IoResult(Carry(request))});
}

int32_t SimDisk::Carry(const IoRequest& request) {
  if (Strikes(DiskFault::kInterrupted)) return -EINTR;
  if (request.kind == IoKind::kSync) return Sync(&files_[request.file]);
  if (Strikes(DiskFault::kAgain)) return -EAGAIN;
  return request.kind == IoKind::kRead ? Read(request) : Write(request);
}

int32_t SimDisk::Read(const IoRequest& request) {
  if (Strikes(DiskFault::kReadError)) return -EIO;
  uint32_t bytes = request.bytes;
  if (Strikes(DiskFault::kShort)) bytes = static_cast<uint32_t>(1 + Below(bytes));
  std::memcpy(request.data, files_[request.file].now.data() + request.offset, bytes);
  if (Strikes(DiskFault::kFlipInAnswer)) request.data[Below(bytes)] ^= std::byte{1} << Below(8);
  return static_cast<int32_t>(bytes);
}

int32_t SimDisk::Write(const IoRequest& request) {
  File* file = &files_[request.file];
  const std::span<const std::byte> all(request.data, request.bytes);
  const auto some = [&] { return all.first(1 + Below(all.size())); };
  if (Strikes(DiskFault::kNoSpace)) return -ENOSPC;
  if (Strikes(DiskFault::kWriteError)) {
    if (Below(2) == 0) Put(file, request.offset, some());
    return -EIO;
  }
  if (Strikes(DiskFault::kLost)) return static_cast<int32_t>(request.bytes);
  if (Strikes(DiskFault::kMisplaced)) {
    const uint64_t places = (file->now.size() - request.bytes) / kSectorBytes + 1;
    Put(file, Below(places) * kSectorBytes, all);
    return static_cast<int32_t>(request.bytes);
  }
  if (Strikes(DiskFault::kShort)) {
    const auto part = some();
    Put(file, request.offset, part);
    return static_cast<int32_t>(part.size());
  }
  Put(file, request.offset, all);
  if (Strikes(DiskFault::kFlipAtRest))
    file->now[request.offset + Below(all.size())] ^= std::byte{1} << Below(8);
  return static_cast<int32_t>(request.bytes);
}

void SimDisk::Put(File* file, uint64_t offset, std::span<const std::byte> bytes) {
  std::memcpy(file->now.data() + offset, bytes.data(), bytes.size());
  for (uint64_t sector = offset / kSectorBytes; sector * kSectorBytes < offset + bytes.size();
       ++sector) {
    if (file->at_stake[sector]) continue;
    file->at_stake[sector] = true;
    file->stakes.push_back(static_cast<uint32_t>(sector));
  }
}

// As file systems do it: after an error the next flush finds nothing left to do.
int32_t SimDisk::Sync(File* file) {
  const bool chosen = fails_sync_.has_value() && file == &files_[*fails_sync_];
  if (chosen) fails_sync_.reset();
  const bool fails = Strikes(DiskFault::kSyncError) || chosen;
  for (const uint32_t sector : file->stakes) {
    if (!fails)
      std::memcpy(file->durable.data() + sector * kSectorBytes,
                  file->now.data() + sector * kSectorBytes, kSectorBytes);
    file->at_stake[sector] = false;
  }
  file->stakes.clear();
  return fails ? -EIO : 0;
}

void SimDisk::LoseOwner() {
  for (const Out& out : out_) {
    if (out.request.kind != IoKind::kWrite) continue;
    // Whole, in part, or not at all.
    const uint64_t sectors = out.request.bytes / kSectorBytes;
    const uint64_t carried = Below(3) == 0 ? Below(sectors) : Below(2) * sectors;
    Put(&files_[out.request.file], out.request.offset, {out.request.data, carried * kSectorBytes});
  }
  out_.clear();
}

void SimDisk::LosePower() {
  for (const Out& out : out_) {
    // It may have been under way.
    if (out.request.kind == IoKind::kWrite && Below(2) == 0) {
      Put(&files_[out.request.file], out.request.offset, {out.request.data, out.request.bytes});
    }
  }
  out_.clear();
  for (File& file : files_) {
    for (const uint32_t sector : file.stakes) {
      std::byte* const now = file.now.data() + sector * kSectorBytes;
      std::byte* const durable = file.durable.data() + sector * kSectorBytes;
      switch (Below(4)) {
        case 0: std::memcpy(durable, now, kSectorBytes); break;
        case 1: break;
        case 2: std::memcpy(durable, now, 8 * (1 + Below(kSectorBytes / 8 - 1))); break;
        case 3:
          for (uint64_t i = 0; i < kSectorBytes; i += sizeof(uint64_t)) {
            const uint64_t trash = random_.Next();
            std::memcpy(durable + i, &trash, sizeof trash);
          }
          break;
      }
      file.at_stake[sector] = false;
    }
    // What a failed flush forgot is lost as well.
    file.stakes.clear();
    file.now = file.durable;
  }
}

}  // namespace tidepool::nvme
