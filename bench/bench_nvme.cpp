// bench_nvme: how fast pieces of states go to a drive and come back, checksums on, against fio on the same file system.
//
// Pairs of runs take turns, because drives are noisy: ours, then fio's with the same block size and depth, io_uring and direct transfers.
// A row is the median over the pairs. CPU seconds a GiB are the process's own, and fio's as its report has them (drive_peer.h). Whole
// optimizer steps with a memserver: nvme_step.h.
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "bench/drive_peer.h"
#include "bench/nvme_step.h"
#include "bench/row.h"
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
constexpr uint32_t kSlots = 24, kDepth = 64;  // as memserver has them
constexpr uint64_t kPieces = kFileBytes / kPieceBytes;
constexpr double kSpeedTarget = 0.95, kCpuTarget = 1;

constexpr const char* kHelp =
    "bench_nvme [--json FILE] [--pairs 15] [--elements N] [DIR]\n"
    "Pieces of states to and from a directory of its own in DIR (default: the current one), checksums on, against fio; 1 s a run. Then\n"
    "whole optimizer steps of N parameters (default 64 Mi) with fp32 states there. Needs 4 GiB there, and 3 GiB of memory.\n";

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What the tier does with a drive, without a server around it; one thread stands for the serve loop and the workers.
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
    transfers_ = std::make_unique<nvme::TransferQueue>(opened_.queue.get(), &clock_, nvme::TransferOptions{.transfers_max = kSlots});
  }
  std::string Name() const { return opened_.queue->Name(); }

  // For a second, and at least `pieces_min` of them.
  DriveSpeed Run(nvme::IoKind kind, uint64_t pieces_min = 0) {
    const double cpu = CpuSeconds();
    const int64_t begin = clock_.NowNs();
    uint64_t pieces = 0;
    next_ = 0;
    for (uint32_t slot = 0; slot < kSlots; ++slot) Start(kind, slot);
    while (transfers_->in_flight() > 0) {
      opened_.queue->ClearEvent();
      if (!transfers_->Progress()) Wait();
      nvme::TransferDone done;
      while (transfers_->Next(&done)) {
        End(kind, done);
        ++pieces;
        if (clock_.NowNs() - begin < kNsPerSecond || next_ < pieces_min) Start(kind, static_cast<uint32_t>(done.tag));
        transfers_->Progress();  // the drive has work while the next piece is checked, as with workers
      }
    }
    const double seconds = static_cast<double>(clock_.NowNs() - begin) / kNsPerSecond;
    const double gib = static_cast<double>(pieces * kPieceBytes) / static_cast<double>(kGiB);
    return {gib / seconds, (CpuSeconds() - cpu) / gib};
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
    names_[slot] = {.store = 1, .job = 1, .chunk = 0, .piece = static_cast<uint32_t>(piece), .epoch = 1, .place = piece * kPieceBytes};
    if (kind == nvme::IoKind::kWrite) nvme::SealPiece(names_[slot], PayloadOf(slot), HeaderOf(slot));
    transfers_->Start({kind, 0, piece * kPieceBytes, memory_.bytes().data() + slot * kPieceBytes, kPieceBytes, slot});
  }
  void End(nvme::IoKind kind, const nvme::TransferDone& done) const {
    const auto slot = static_cast<uint32_t>(done.tag);
    if (done.error != 0) Die("a transfer failed");
    const bool checked = kind == nvme::IoKind::kRead;
    if (checked && !nvme::VerifyPiece(*HeaderOf(slot), names_[slot], PayloadOf(slot)).ok()) Die("a piece is damaged");
  }
  // As the serve loop sleeps.
  void Wait() const {
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
};

void Measure(Ours* ours, const std::string& path, nvme::IoKind kind, uint64_t pairs, RowPrinter* rows) {
  const bool reads = kind == nvme::IoKind::kRead;
  const std::string direction = reads ? "read" : "write", name = reads ? "fill" : "spill";
  std::vector<double> speeds, cpus, ratios, cpu_ratios;
  SteadyClock clock;
  MeasureFio(path, direction, kDepth);  // not counted: its first writes allocate
  for (uint64_t pair = 0; pair < pairs; ++pair) {
    clock.SleepNs(kDrivePauseNs);
    const DriveSpeed own = ours->Run(kind);
    clock.SleepNs(kDrivePauseNs);
    const auto other = MeasureFio(path, direction, kDepth);
    speeds.push_back(own.gib_per_second);
    cpus.push_back(own.cpu_per_gib);
    if (!other) continue;
    ratios.push_back(own.gib_per_second / other->gib_per_second);
    cpu_ratios.push_back(other->cpu_per_gib / own.cpu_per_gib);
  }
  Row speed{"nvme", name + ", checksums on", Median(speeds), "GiB/s", "", {}, {}};
  Row cpu{"nvme", name + ", CPU", Median(cpus), "s a GiB", "", {}, {}};
  if (ratios.empty()) {
    rows->Add(speed);
    rows->Add(cpu);
    return;
  }
  speed.against = cpu.against = "fio, without checksums";
  speed.ratio = Median(ratios);
  speed.target = kSpeedTarget;
  cpu.ratio = Median(cpu_ratios);
  cpu.target = kCpuTarget;
  rows->Add(speed, SpreadOf(ratios));
  rows->Add(cpu, SpreadOf(cpu_ratios));
}

int Main(int argc, const char* const* argv) {
  RowPrinter rows(argc, argv, kHelp);
  const uint64_t pairs = rows.Number("--pairs", 15);
  const uint64_t elements = rows.Number("--elements", uint64_t{64} << 20);
  const auto base = rows.arguments().empty() ? std::filesystem::current_path() : std::filesystem::canonical(rows.arguments().front());
  const std::string path = ScratchIn(base.string());
  auto own = std::make_unique<Ours>(path);
  Ours& ours = *own;
  std::fprintf(stderr, "bench_nvme: %s\n", ours.Name().c_str());
  if (!HasFio()) std::fprintf(stderr, "bench_nvme: the program fio is missing (Debian: apt-get install fio): the rows stand alone\n");
  ours.Run(nvme::IoKind::kWrite, kPieces);  // so that every piece can be read
  Measure(&ours, path, nvme::IoKind::kWrite, pairs, &rows);
  Measure(&ours, path, nvme::IoKind::kRead, pairs, &rows);
  own.reset();  // its lock is on the directory that the server is given next
  MeasureOptimizerStep({path, kDepth, std::max<uint64_t>(1, pairs / 3), elements}, &rows);
  return rows.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
