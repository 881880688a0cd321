#include "memserver/probe/bench_drive.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "base/units.h"
#include "memserver/traffic/nvme_tier.h"
#include "nvme/drive_profile.h"
#include "nvme/io_queue.h"
#include "nvme/page_memory.h"
#include "nvme/slot_directory.h"
#include "nvme/transfer.h"

namespace tidepool::memserver {
namespace {

constexpr std::array<uint32_t, 4> kBlocks = {256 * kKiB, 512 * kKiB, kMiB, 4 * kMiB};
constexpr std::array<uint32_t, 4> kDepths = {4, 16, 64, 128};
constexpr uint64_t kFileBytes = 512 * kMiB;
constexpr uint64_t kPieceBytes = StateTier::kPieceBytesMax;
constexpr uint64_t kPieces = kFileBytes / kPieceBytes;
// A faster setting must be faster by this factor to be preferred to one with smaller or fewer
// blocks.
constexpr double kWorthIt = 1.03;

// A directory of its own inside the given one, removed afterwards.
class Scratch {
 public:
  explicit Scratch(const std::string& directory) : path_(directory + "/bench.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Way {
  uint32_t block = 0, depth = 0;
  double write = 0, read = 0;  // bytes/s

  // Each piece is read once and written once per step.
  double both() const { return 2 / (1 / write + 1 / read); }
};

struct Drive {
  std::string directory;
  const nvme::SlotDirectory* slots;
  std::span<std::byte> memory;
  bool allow_uring;
  int64_t run_ns;
  Clock* clock;
  std::string queue;  // its name, if one was opened
};

// Bytes/s of one kind of transfer, with staging full all the time, as during an update.
Result<double> Rate(const Drive& drive, nvme::TransferQueue* transfers, nvme::IoQueue* queue,
                    nvme::IoKind kind, uint64_t pieces_min = 0) {
  const int64_t begin = drive.clock->NowNs();
  uint64_t piece = 0, ended = 0;
  const auto start = [&](uint64_t slot) {
    transfers->Start({kind, 0, piece++ % kPieces * kPieceBytes,
                      drive.memory.data() + slot * kPieceBytes, kPieceBytes, slot});
  };

  for (uint64_t slot = 0; slot < StateTier::kStagingSlots; ++slot) start(slot);
  while (transfers->in_flight() > 0) {
    queue->ClearEvent();
    transfers->Progress();
    nvme::TransferDone done;
    while (transfers->Next(&done)) {
      if (done.error != 0) {
        return Status(ErrorId::kNvmeIoFailed,
                      std::string("a transfer failed: ") + std::strerror(done.error))
            .Where(drive.slots->path());
      }

      ++ended;
      if (drive.clock->NowNs() - begin < drive.run_ns || piece < pieces_min) start(done.tag);
    }
  }
  return static_cast<double>(ended * kPieceBytes) * kNsPerSecond /
         static_cast<double>(drive.clock->NowNs() - begin);
}

Status Measure(Drive* drive, Way* way, uint64_t pieces_min = 0) {
  nvme::IoQueueOptions options;
  options.depth = way->depth;
  options.allow_uring = drive->allow_uring;
  options.files = {drive->slots->data_fd()};
  options.buffers = {drive->memory};
  const nvme::OpenedIoQueue opened = nvme::OpenIoQueue(options);
  drive->queue = opened.queue->Name();
  nvme::TransferQueue transfers(
      opened.queue.get(), drive->clock,
      {.transfers_max = StateTier::kStagingSlots, .block_bytes = way->block});

  TP_ASSIGN_OR_RETURN(
      way->write, Rate(*drive, &transfers, opened.queue.get(), nvme::IoKind::kWrite, pieces_min));
  TP_ASSIGN_OR_RETURN(way->read, Rate(*drive, &transfers, opened.queue.get(), nvme::IoKind::kRead));
  return Status();
}

// Starts from the smallest.
const Way& Best(const std::vector<Way>& ways) {
  const Way* best = &ways.front();
  for (const Way& way : ways) {
    if (way.both() > kWorthIt * best->both()) best = &way;
  }
  return *best;
}

std::string Setting(const Way& way) {
  return "--nvme-block " + std::to_string(way.block / kKiB) + "KiB --nvme-depth " +
         std::to_string(way.depth);
}

std::string Table(const std::vector<Way>& ways, const Drive& drive) {
  std::string text = "GB a second to " + drive.slots->path() + ", written / read; " + drive.queue +
                     "\n\nblock     ";
  std::array<char, 48> cell{};
  for (const uint32_t depth : kDepths) {
    std::snprintf(cell.data(), cell.size(), "  %8u at once", depth);
    text += cell.data();
  }

  for (const Way& way : ways) {
    if (way.depth == kDepths.front()) {
      std::snprintf(cell.data(), cell.size(), "\n%-10s", FormatBytes(way.block).c_str());
      text += cell.data();
    }
    std::snprintf(cell.data(), cell.size(), "  %7.2f / %6.2f", way.write / 1e9, way.read / 1e9);
    text += cell.data();
  }
  text += "\n\nuse: " + Setting(Best(ways)) + "\n";
  return text + "written to " + drive.directory + "/" + nvme::kProfileFileName +
         ": memserver run --nvme " + drive.directory + ":SIZE does so of itself\n";
}

std::string Json(const std::vector<Way>& ways, const Drive& drive) {
  JsonWriter json;
  json.BeginObject()
      .Field("bench", "nvme")
      .Field("directory", drive.directory)
      .Field("queue", drive.queue);
  json.Field("profile", drive.directory + "/" + nvme::kProfileFileName);
  json.Field("block_bytes", uint64_t{Best(ways).block})
      .Field("depth", uint64_t{Best(ways).depth})
      .Key("rows")
      .BeginArray();

  for (const Way& way : ways) {
    json.BeginObject()
        .Field("block_bytes", uint64_t{way.block})
        .Field("depth", uint64_t{way.depth});
    json.Field("bytes_written_per_second", way.write)
        .Field("bytes_read_per_second", way.read)
        .EndObject();
  }
  return json.EndArray().EndObject().Take() + "\n";
}

}  // namespace

Result<std::string> BenchDrive(const BenchDriveOptions& options, Clock* clock) {
  const Scratch scratch(options.directory);
  if (scratch.path().empty()) {
    return Status(ErrorId::kNvmeDirectoryBad,
                  std::string("no directory can be made there: ") + std::strerror(errno))
        .Where(options.directory);
  }

  TP_ASSIGN_OR_RETURN(
      const nvme::SlotDirectory slots,
      nvme::SlotDirectory::Open({.path = scratch.path(), .bytes = kFileBytes}, clock));
  TP_ASSIGN_OR_RETURN(const nvme::PageMemory memory,
                      nvme::PageMemory::Map(StateTier::kStagingSlots * kPieceBytes));
  Drive drive{.directory = options.directory,
              .slots = &slots,
              .memory = memory.bytes(),
              .allow_uring = options.allow_uring,
              .run_ns = options.run_ns,
              .clock = clock,
              .queue = ""};
  // The first writes allocate; their time is not the drive's.
  Way first{.block = kBlocks.front(), .depth = kDepths.back()};
  TP_RETURN_IF_ERROR(Measure(&drive, &first, kPieces));
  std::vector<Way> ways;
  for (const uint32_t block : kBlocks) {
    for (const uint32_t depth : kDepths) {
      ways.push_back({.block = block, .depth = depth});
      TP_RETURN_IF_ERROR(Measure(&drive, &ways.back()));
    }
  }

  TP_RETURN_IF_ERROR(nvme::WriteProfile(
      options.directory, {.block_bytes = Best(ways).block, .depth = Best(ways).depth}));
  return options.json ? Json(ways, drive) : Table(ways, drive);
}

}  // namespace tidepool::memserver
