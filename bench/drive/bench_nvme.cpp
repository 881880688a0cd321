// bench_nvme: how fast pieces of states move to a drive and back, with checksums, compared with fio
// on the same file system.
//
// Pairs of runs alternate, because drives are noisy: ours, then fio's, each with its best block
// size on this drive, io_uring, direct transfers and 2 MiB pages. A row is the median over the
// pairs. CPU seconds per GiB are the process's own, and fio's from its report (drive_peer.h). The
// costs of transfers and checksums alone are shown, too. Whole optimizer steps: nvme_step.h.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/formats/crc32c.h"
#include "base/units.h"
#include "bench/drive/drive_peer.h"
#include "bench/loops/memory_loops.h"
#include "bench/drive/nvme_step.h"
#include "bench/harness/row.h"
#include "memserver/traffic/nvme_tier.h"
#include "memserver/traffic/state_tier.h"
#include "nvme/io_queue.h"
#include "nvme/page_memory.h"
#include "nvme/piece.h"
#include "nvme/slot_directory.h"
#include "nvme/transfer.h"

namespace tidepool::bench {
namespace {

constexpr uint64_t kFileBytes = kGiB;
constexpr uint64_t kPayload = 3 * kMiB;
constexpr uint64_t kPieceBytes = nvme::kPieceHeaderBytes + kPayload;
constexpr uint32_t kSlots = memserver::StateTier::kStagingSlots, kDepth = memserver::kDepthDefault;
constexpr uint64_t kPieces = kFileBytes / kPieceBytes;
constexpr double kSpeedTarget = 0.95, kCpuTarget = 1;
// The parts alone, and fio with checksums, are measured in every third pair.
constexpr uint64_t kPairsPerPart = 3;
constexpr const char* kPlainFio = "fio, without checksums";

constexpr const char* kHelp =
    "bench_nvme [--json FILE] [--only pieces|steps] [--pairs 15] [--rounds 5] [--elements N] "
    "[--block-kib N] [DIR]\n"
    "Pieces of states to and from a directory of its own in DIR (default: the current one), "
    "checksums on, against fio; 1 s a run. Then\n"
    "whole optimizer steps of N parameters (default 128 Mi: GPT-2 124M) with fp32 states there. "
    "Needs 6 GiB there, and 5 of memory.\n"
    "--block-kib: of one read or write of pieces; default: the fastest of 256 KiB, 1 and 4 MiB.\n";

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The tier's use of a drive, without a server around it; one thread acts as serve loop and workers.
class Ours {
 public:
  explicit Ours(const std::string& path)
      : directory_(OrDie(nvme::SlotDirectory::Open({.path = path, .bytes = kFileBytes}, &clock_))),
        memory_(OrDie(nvme::PageMemory::Map(kSlots * kPieceBytes))) {
    nvme::IoQueueOptions options;
    options.depth = kDepth;
    options.files = {directory_.data_fd()};
    options.buffers = {memory_.bytes()};
    opened_ = nvme::OpenIoQueue(options);
    UseBlocksOf(memserver::kBlockBytesDefault);
  }
  std::string Name() const { return opened_.queue->Name(); }
  void UseBlocksOf(uint64_t bytes) {
    nvme::TransferOptions cut{.transfers_max = kSlots};
    cut.block_bytes = static_cast<uint32_t>(bytes);
    transfers_ = std::make_unique<nvme::TransferQueue>(opened_.queue.get(), &clock_, cut);
  }

  // Runs for a second, and at least `pieces_min` pieces. Data written without checksums cannot be
  // read with them.
  DriveSpeed Run(nvme::IoKind kind, bool checksums, uint64_t pieces_min = 0) {
    checksums_ = checksums;
    const double cpu = CpuSeconds();
    const int64_t begin = clock_.NowNs();
    uint64_t pieces = 0;
    next_ = 0;
    for (uint32_t slot = 0; slot < kSlots; ++slot) Start(kind, slot);

    while (transfers_->in_flight() > 0) {
      if (!transfers_->Progress()) Wait();
      nvme::TransferDone done;
      while (transfers_->Next(&done)) {
        End(kind, done);
        ++pieces;
        if (clock_.NowNs() - begin < kNsPerSecond || next_ < pieces_min)
          Start(kind, static_cast<uint32_t>(done.tag));
        // The drive has work while the next piece is checked, as with workers.
        transfers_->Progress();
      }
    }

    const double seconds = static_cast<double>(clock_.NowNs() - begin) / kNsPerSecond;
    const double gib = static_cast<double>(pieces * kPieceBytes) / static_cast<double>(kGiB);
    return {gib / seconds, (CpuSeconds() - cpu) / gib};
  }
  // CPU seconds for the checksums of a GiB in memory; and for a plain sum of its words, the least
  // cost of reading it.
  double ChecksumsAlone() const {
    return OfAGib([this](uint32_t slot) { (void)Crc32c(PayloadOf(slot)); });
  }
  double ReadingAlone() const {
    return OfAGib(
        [this](uint32_t slot) { sum_ = SelectLoops().read(PayloadOf(slot).data(), kPayload); });
  }

 private:
  nvme::PieceHeader* HeaderOf(uint32_t slot) const {
    return reinterpret_cast<nvme::PieceHeader*>(memory_.bytes().data() + slot * kPieceBytes);
  }
  std::span<std::byte> PayloadOf(uint32_t slot) const {
    return memory_.bytes().subspan(slot * kPieceBytes + nvme::kPieceHeaderBytes, kPayload);
  }
  void Start(nvme::IoKind kind, uint32_t slot) {
    const uint64_t piece = next_++ % kPieces;
    names_[slot] = {.store = 1,
                    .job = 1,
                    .chunk = 0,
                    .piece = static_cast<uint32_t>(piece),
                    .epoch = 1,
                    .place = piece * kPieceBytes};

    if (checksums_ && kind == nvme::IoKind::kWrite)
      nvme::SealPiece(names_[slot], PayloadOf(slot), HeaderOf(slot));
    transfers_->Start({kind, 0, piece * kPieceBytes, memory_.bytes().data() + slot * kPieceBytes,
                       kPieceBytes, slot});
  }
  void End(nvme::IoKind kind, const nvme::TransferDone& done) const {
    const auto slot = static_cast<uint32_t>(done.tag);
    if (done.error != 0) Die("a transfer failed");
    const bool checked = checksums_ && kind == nvme::IoKind::kRead;
    if (checked && !nvme::VerifyPiece(*HeaderOf(slot), names_[slot], PayloadOf(slot)).ok())
      Die("a piece is damaged");
  }
  template <typename Look>
  double OfAGib(Look look) const {
    constexpr uint32_t kPasses = 32;
    const double cpu = CpuSeconds();
    for (uint32_t i = 0; i < kPasses * kSlots; ++i) look(i % kSlots);
    return (CpuSeconds() - cpu) /
           (static_cast<double>(kPasses * kSlots * kPayload) / static_cast<double>(kGiB));
  }
  // Waits like the serve loop.
  void Wait() {
    opened_.queue->ClearEvent();
    if (transfers_->Progress()) return;
    pollfd event{opened_.queue->event_fd(), POLLIN, 0};
    poll(&event, 1, 1);
  }

  SteadyClock clock_;
  nvme::SlotDirectory directory_;
  nvme::PageMemory memory_;
  nvme::OpenedIoQueue opened_;
  std::unique_ptr<nvme::TransferQueue> transfers_;
  std::array<nvme::PieceName, kSlots> names_{};
  uint64_t next_ = 0;
  bool checksums_ = true;
  mutable volatile uint64_t sum_ = 0;  // keeps the sum from being optimised away
};

struct Series {
  const char* against = kPlainFio;
  std::vector<double> values, ratios;  // CPU seconds per GiB, and fio's relative to them

  void Add(double value, const std::optional<DriveSpeed>& peer) {
    values.push_back(value);
    if (peer) ratios.push_back(peer->cpu_per_gib / value);
  }
};

void AddRow(const std::string& name, const Series& series, const char* unit,
            std::optional<double> target, RowPrinter* rows) {
  Row row{"nvme", name, Median(series.values), unit, "", {}, {}};
  if (series.ratios.empty()) return rows->Add(row);
  row.against = series.against;
  row.ratio = Median(series.ratios);
  row.target = target;
  rows->Add(row, SpreadOf(series.ratios));
}

// The fastest of the sizes that fio uses too, one second each.
uint64_t BestBlocks(Ours* ours, nvme::IoKind kind) {
  constexpr std::array<uint64_t, 3> kSizes{kMiB, 4 * kMiB, 256 * kKiB};
  SteadyClock clock;
  uint64_t best = kSizes.front();
  double most = 0;

  for (const uint64_t size : kSizes) {
    clock.SleepNs(kDrivePauseNs);
    ours->UseBlocksOf(size);
    const double speed = ours->Run(kind, true).gib_per_second;
    if (speed > most) best = size;
    most = std::max(most, speed);
  }
  return best;
}

struct PieceRuns {
  std::string path;
  uint64_t pairs = 0, block_bytes = 0;  // 0: the best
};

void Measure(Ours* ours, const PieceRuns& runs, nvme::IoKind kind, RowPrinter* rows) {
  const std::string& path = runs.path;
  const bool reads = kind == nvme::IoKind::kRead;
  const std::string direction = reads ? "read" : "write", name = reads ? "fill" : "spill";
  Series speed, cpu, transfers, checksums, reading;
  Series checked{
      .against = "fio, with a CRC32C in each block (verify=crc32c)", .values = {}, .ratios = {}};
  SteadyClock clock;
  // fio uses the same blocks of the drive as ours: another file's may be faster or slower.
  const FioWay way = BestFioWay(path, direction, nvme::kDataFileName);
  const uint64_t blocks = runs.block_bytes > 0 ? runs.block_bytes : BestBlocks(ours, kind);
  ours->UseBlocksOf(blocks);
  const std::string of_fio = HasFio() ? "fio is best with blocks of " + std::string(way.block) +
                                            ", " + std::to_string(way.depth) + " of them out; "
                                      : "";
  std::fprintf(stderr, "bench_nvme: %s: %spieces are moved in blocks of %s\n", direction.c_str(),
               of_fio.c_str(), FormatBytes(blocks).c_str());

  const FioWay checking{.block = way.block, .depth = way.depth, .checks = true};
  if (!reads) MeasureFio(path, "write", checking);  // not counted: fio's first writes allocate
  for (uint64_t pair = 0; pair < runs.pairs; ++pair) {
    clock.SleepNs(kDrivePauseNs);
    const DriveSpeed own = ours->Run(kind, true);
    clock.SleepNs(kDrivePauseNs);
    const auto other = MeasureFio(path, direction, way);

    speed.values.push_back(own.gib_per_second);
    if (other) speed.ratios.push_back(own.gib_per_second / other->gib_per_second);
    cpu.Add(own.cpu_per_gib, other);
    if (pair % kPairsPerPart != 0) continue;

    clock.SleepNs(kDrivePauseNs);
    if (reads) MeasureFio(path, "write", checking);  // data for it to check
    checked.Add(own.cpu_per_gib, MeasureFio(path, direction, checking));
    clock.SleepNs(kDrivePauseNs);
    transfers.Add(ours->Run(kind, false).cpu_per_gib, other);
    checksums.Add(ours->ChecksumsAlone(), other);
    reading.Add(ours->ReadingAlone(), other);
  }

  AddRow(name + ", checksums on", speed, "GiB/s", kSpeedTarget, rows);
  AddRow(name + ", CPU", cpu, "s a GiB", kCpuTarget, rows);
  AddRow(name + ", CPU, both with checksums", checked, "s a GiB", kCpuTarget, rows);
  AddRow(name + ", CPU of the transfers alone", transfers, "s a GiB", {}, rows);
  AddRow(name + ", CPU of the checksums alone", checksums, "s a GiB", {}, rows);
  AddRow(name + ", CPU of reading as much memory once", reading, "s a GiB", {}, rows);
}

void MeasurePieces(const PieceRuns& runs, RowPrinter* rows) {
  Ours ours(runs.path);
  std::fprintf(stderr, "bench_nvme: %s\n", ours.Name().c_str());
  ours.Run(nvme::IoKind::kWrite, true, kPieces);  // allocates the file
  Measure(&ours, runs, nvme::IoKind::kWrite, rows);
  ours.Run(nvme::IoKind::kWrite, true, kPieces);  // makes every piece readable
  Measure(&ours, runs, nvme::IoKind::kRead, rows);
}

int Main(int argc, const char* const* argv) {
  RowPrinter rows(argc, argv, kHelp);
  const uint64_t pairs = rows.Number("--pairs", 15);
  const uint64_t rounds = rows.Number("--rounds", 5);
  const uint64_t block_bytes = kKiB * rows.Number("--block-kib", 0);
  const std::string only = rows.Word("--only", "");
  const uint64_t elements = rows.Number("--elements", uint64_t{128} << 20);

  const auto base = rows.arguments().empty() ? std::filesystem::current_path()
                                             : std::filesystem::canonical(rows.arguments().front());
  const std::string path = ScratchIn(base.string());

  if (!HasFio())
    std::fprintf(stderr,
                 "bench_nvme: the program fio is missing (scripts/setup --bench): the rows "
                 "stand alone\n");

  if (only != "steps") MeasurePieces({path, pairs, block_bytes}, &rows);
  if (only != "pieces") MeasureOptimizerStep({path, rounds, elements}, &rows);
  return rows.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
