#include "memserver/probe/bench_copies.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "base/system/system_memory.h"
#include "base/units.h"
#include "device/host/copy_bytes.h"
#include "device/host/copy_team.h"
#include "device/host/copy_tuning.h"
#include "memserver/jobs/limits.h"
#include "memserver/residency/pool/host_pool.h"

namespace tidepool::memserver {
namespace {

constexpr std::array<uint64_t, 6> kSizes = {64 * kKiB, 256 * kKiB, kMiB,
                                            4 * kMiB,  16 * kMiB,  64 * kMiB};
constexpr int kRounds = 5;
constexpr int64_t kRoundNs = 15 * kNsPerMs;

struct CopyWay {
  std::string name;
  device::CopyKernel kernel = device::CopyKernel::kMemcpy;
  device::CopyTeam* team = nullptr;
  std::vector<double> rates;  // bytes/s, one per size
};

std::string Fixed(double value, int width, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%*.*f", width, digits, value);
  return text.data();
}

// Measures all ways in turn, round after round, so that a disturbance hits them alike; takes the
// median of each.
void Measure(std::span<std::byte> scratch, uint64_t size, std::vector<CopyWay>* ways,
             const Clock& clock) {
  device::CopyMeter meter(&clock, scratch, size);
  std::vector<std::vector<double>> rounds(ways->size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < ways->size(); ++i)
      rounds[i].push_back(meter.Rate((*ways)[i].kernel, (*ways)[i].team, kRoundNs));
  }

  for (size_t i = 0; i < ways->size(); ++i) {
    std::sort(rounds[i].begin(), rounds[i].end());
    (*ways)[i].rates.push_back(rounds[i][kRounds / 2]);
  }
}

std::string Table(const std::vector<CopyWay>& ways, const std::string& pages,
                  device::CopyKernel chosen) {
  std::string text =
      "GB copied a second (times memcpy); memory cold for the core, pages of " + pages + "\n\n";
  text += "size      ";
  for (const CopyWay& way : ways)
    text += "  " + std::string(15 - std::min<size_t>(15, way.name.size()), ' ') + way.name;
  for (size_t size = 0; size < kSizes.size(); ++size) {
    std::string name = FormatBytes(kSizes[size]);
    name.resize(10, ' ');
    text += "\n" + name;

    for (const CopyWay& way : ways) {
      text += "  " + Fixed(way.rates[size] / 1e9, 7, 2) + " (" +
              Fixed(way.rates[size] / ways[0].rates[size], 4, 2) + "x)";
    }
  }
  return text + "\n\ncopies of " + FormatBytes(device::kStreamingCopyMin) +
         " and more use: " + NameOf(chosen) +
         "; smaller ones: memcpy, which leaves them where their reader finds them\n";
}

std::string Json(const std::vector<CopyWay>& ways, const std::string& pages,
                 device::CopyKernel chosen) {
  JsonWriter json;
  json.BeginObject()
      .Field("bench", "copy")
      .Field("pages", pages)
      .Field("chosen", NameOf(chosen))
      .Key("rows")
      .BeginArray();

  for (size_t size = 0; size < kSizes.size(); ++size) {
    for (const CopyWay& way : ways) {
      json.BeginObject()
          .Field("bytes", kSizes[size])
          .Field("way", way.name)
          .Field("bytes_per_second", way.rates[size]);
      json.Field("times_memcpy", way.rates[size] / ways[0].rates[size]).EndObject();
    }
  }
  return json.EndArray().EndObject().Take() + "\n";
}

}  // namespace

Result<std::string> BenchCopies(uint64_t bytes, bool json, const Clock& clock) {
  if (bytes < 2 * kSizes.back()) {
    return Status(ErrorId::kUsageError, "copies cannot be measured in " + FormatBytes(bytes))
        .Where("--bytes")
        .Fix("give at least " + FormatBytes(2 * kSizes.back()));
  }

  HostPoolOptions options;
  options.bytes = bytes;
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<HostPool> pool,
                      HostPool::Reserve(options, ReadMemoryBudget()));
  const uint64_t all[] = {pool->total_bytes()};
  std::vector<Extent> extents;
  if (!pool->Take(all, &extents))
    return Status(ErrorId::kUsageError, "more than one piece of memory").Where("--bytes");
  const std::span<std::byte> scratch(extents[0].data, extents[0].bytes);
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1U, kCopyThreadsMax);
  device::CopyTeam team(&clock, threads - 1, kSpinNsManyCores);
  const device::CopyTuning tuning = device::TuneCopies(scratch, nullptr, kTuneCopiesNs, clock);

  std::vector<CopyWay> ways;
  for (const device::CopyKernel kernel : device::CopyKernels())
    ways.push_back({.name = NameOf(kernel), .kernel = kernel, .rates = {}});
  ways.push_back({.name = std::to_string(threads) + " threads",
                  .kernel = tuning.chosen,
                  .team = &team,
                  .rates = {}});
  for (const uint64_t size : kSizes) Measure(scratch, size, &ways, clock);
  const std::string pages = pool->facts().huge_page_bytes > bytes / 2 ? "2 MiB" : "4 KiB";
  return json ? Json(ways, pages, tuning.chosen) : Table(ways, pages, tuning.chosen);
}

}  // namespace tidepool::memserver
