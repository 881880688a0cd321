#include "trainer/run/banner.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>

#include "base/planted.h"
#include "base/units.h"
#include "trainer/run/describe_plan.h"

namespace tidepool::trainer {
namespace {

std::string Ranks(const RankPlace& place) {
  return std::to_string(place.world) + (place.world == 1 ? " rank" : " ranks");
}

}  // namespace

std::string Banner(const RunPlan& plan, const RankPlace& place, const BannerWords& words) {
  if (TP_PLANTED("trainer.banner_of_all")) return LongBanner(plan, place, words.data);
  std::array<char, 16> share{};
  std::snprintf(share.data(), share.size(), "%.0f %%", 100 * plan.rcache.fraction());

  std::string text =
      "tidepool  job " + plan.spec.name + ", " + Ranks(place) + "; " + words.server + "\n";
  text += "model     " + plan.shape.name + ": " + FormatCount(plan.memory.parameters) +
          " parameters, " + NameOf(plan.layout.dtype);
  if (plan.lora.on())
    text +=
        ", of which " + FormatCount(plan.memory.trained_parameters) + " of adapters are trained";

  text += "; rCache " + FormatBytes(plan.rcache.bytes) + " a rank, " + share.data() +
          " of what is not always resident";
  if (plan.stages)
    text += "; stages: " + std::to_string(plan.stages->stages()) +
            ", micro-batches: " + std::to_string(plan.stages->micro_batches);
  if (!words.device.empty()) text += "; " + words.device;
  return text + "\ndata      " + words.data + "\n";
}

std::string LongBanner(const RunPlan& plan, const RankPlace& place, const std::string& data) {
  return "tidepool trainer  job " + plan.spec.name + ", " + Ranks(place) +
         (place.launcher == "none" ? "" : " (started by: " + place.launcher + ")") + "\n" +
         DescribePlan(plan) + "data      " + data + "\n";
}

void RunVoice::Say(const std::string& text) const {
  if (place_.rank == 0 && !output_.quiet) std::cerr << text << std::flush;
}

void RunVoice::SayWait(const std::string& line) const {
  if (place_.rank == 0)
    std::cerr << (isatty(STDERR_FILENO) != 0 ? "\n" : "") << "server    " << line << "\n"
              << std::flush;
}

void RunVoice::SayPlan(const RunPlan& plan, const RunSetting& setting) const {
  Say(LongBanner(plan, place_, setting.data) + "device    " + setting.device + "\n" +
      DescribeGpuStates(plan));
}

void RunVoice::Introduce(const RunPlan& plan, const RunSetting& setting) {
  if (output_.verbose) {
    if (!introduced_) SayPlan(plan, setting);
    Say("server    " + setting.server + "\n");
  } else if (!introduced_) {
    Say(Banner(plan, place_,
               {.data = setting.data,
                .device = setting.is_gpu ? setting.device : "",
                .server = "memserver at " + setting.server}));
  }
  introduced_ = true;
}

}  // namespace tidepool::trainer
