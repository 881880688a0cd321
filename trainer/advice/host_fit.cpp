#include "trainer/advice/host_fit.h"

#include <algorithm>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

bool Fits(uint64_t bytes, const MemoryBudget& there) {
  return bytes + kHostLeftBytes <= there.bytes_available;
}

bool Fits(const WayToFit& way, const HostFit& fit) {
  return Fits(way.bytes, fit.there) &&
         (fit.drive.path.empty() || way.drive_bytes <= fit.drive.bytes_free);
}

// Host bytes that are not states: the rCaches of ranks on the host.
uint64_t RcachesOnHost(const RunPlan& plan, bool on_host) {
  return on_host ? plan.rcache.bytes * plan.layout.world : 0;
}

uint64_t HostBytes(const RunPlan& plan, bool on_host) {
  return client::StateBytesOf(plan.spec).total() + plan.memory.frozen +
         RcachesOnHost(plan, on_host);
}

// With all states on a drive.
WayToFit ByNvme(const RunPlan& plan, const std::string& flags, bool on_host) {
  const uint64_t pool = client::HostStateBytesOf(plan.spec, 0).total() + plan.memory.frozen;
  const uint64_t drive = RoundUp(client::NvmeBytesOf(plan.spec, 0), kMiB);
  return {(flags.empty() ? "" : flags + ", and ") + FormatBytes(drive) +
              " of NVMe (memserver run --nvme DIR:SIZE)",
          pool + RcachesOnHost(plan, on_host), drive};
}

// Forms of states smaller than fp32 need 16-bit parameters.
struct Form {
  const char *dtype, *states;
};
constexpr Form kForms[] = {{"bf16", "fp32"}, {"bf16", "split"}, {"bf16", "split-8bit"}};

std::string FlagsOf(const Form& form, const RunOptions& options) {
  std::string flags;
  if (options.model.dtype != form.dtype) flags += std::string("--dtype ") + form.dtype;
  if (options.optimizer.states != form.states)
    flags += (flags.empty() ? "" : " ") + std::string("--states ") + form.states;
  return flags;
}

// All changes to try, smallest first.
std::vector<WayToFit> AllWays(const RunOptions& options, const RunPlan& plan, bool on_host) {
  std::vector<WayToFit> ways, with_drive;
  if (client::MaySpill(plan.spec)) with_drive.push_back(ByNvme(plan, "", on_host));

  for (const Form& form : kForms) {
    const std::string flags = FlagsOf(form, options);
    RunOptions changed = options;
    changed.model.dtype = form.dtype;
    changed.optimizer.states = form.states;
    if (flags.empty()) continue;

    // Some rules do not have a smaller form of states.
    Result<RunPlan> other = MakeRunPlan(plan.shape, changed, plan.layout.world, 0, "estimate");
    if (!other.ok()) continue;
    ways.push_back({flags, HostBytes(*other, on_host), 0});
    if (client::MaySpill(other->spec)) with_drive.push_back(ByNvme(*other, flags, on_host));
  }

  ways.insert(ways.end(), with_drive.begin(), with_drive.end());
  return ways;
}

}  // namespace

HostFit JudgeHost(const RunOptions& options, const RunPlan& plan, bool on_host,
                  const MemoryBudget& there, const DriveRoom& drive) {
  HostFit fit;
  fit.drive = drive;
  fit.bytes = HostBytes(plan, on_host);
  fit.there = there;
  fit.fits = Fits(fit.bytes, there);
  if (fit.fits) return fit;

  std::vector<WayToFit> ways = AllWays(options, plan, on_host);
  std::copy_if(ways.begin(), ways.end(), std::back_inserter(fit.ways),
               [&](const WayToFit& way) { return Fits(way, fit); });
  if (fit.ways.empty() && !ways.empty()) {
    fit.ways.push_back(
        *std::min_element(ways.begin(), ways.end(),
                          [](const WayToFit& a, const WayToFit& b) { return a.bytes < b.bytes; }));
  }
  return fit;
}

std::string DescribeFit(const HostFit& fit) {
  const std::string there = FormatBytes(fit.there.bytes_available) + " of host memory are here (" +
                            fit.there.limited_by + ")";
  if (fit.fits)
    return "fits      this machine: yes: " + there + ", of which " + FormatBytes(kHostLeftBytes) +
           " stay free\n";

  std::string text =
      "fits      this machine: no: " + FormatBytes(fit.bytes) + " are needed, and " + there + "\n";
  for (const WayToFit& way : fit.ways) {
    const bool enough = Fits(way, fit);
    text += std::string(10, ' ') + (enough ? "would fit: " : "the smallest, too large too: ") +
            way.flags + ": " + FormatBytes(way.bytes) + "\n";
  }

  const bool any_drive = std::any_of(fit.ways.begin(), fit.ways.end(),
                                     [](const WayToFit& way) { return way.drive_bytes > 0; });
  if (any_drive && !fit.drive.path.empty())
    text += std::string(10, ' ') + "the largest drive here: " + FormatBytes(fit.drive.bytes_free) +
            " free in " + fit.drive.path + "\n";
  return text;
}

Status CheckPrivatePool(uint64_t pool_bytes, const MemoryBudget& there) {
  if (Fits(pool_bytes, there)) return {};
  return Status(ErrorId::kHostMemoryShort,
                "the private memserver would need a pool of " + FormatBytes(pool_bytes) + ", and " +
                    FormatBytes(there.bytes_available) + " are available")
      .Where("--standalone")
      .Why("the limit is " + there.limited_by + ", and " + FormatBytes(kHostLeftBytes) +
           " stay free")
      .Fix("`trainer estimate` with the same flags says what would fit");
}

}  // namespace tidepool::trainer
