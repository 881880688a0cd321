#include "base/picture/palette.h"

#include <algorithm>
#include <array>

namespace tidepool {
namespace {

constexpr size_t kGrounds = 12;
constexpr auto kInks = std::to_array<Ink>({
    {"ground", "#f4f6f8", "#0f151b"},
    {"card", "#ffffff", "#18212a"},
    {"ink", "#17212b", "#e6ecf1"},
    {"soft", "#586673", "#98a6b3"},
    {"line", "#dde3e9", "#2b3743"},
    {"faint", "#eceff3", "#222d37"},
    {"accent", "#0072b2", "#56b4e9"},
    {"good", "#00795a", "#3ecf9f"},
    {"warn", "#9a5b00", "#f2b04c"},
    {"bad", "#b3261e", "#ff8a80"},
    {"warn-ground", "#fdf3e1", "#32260f"},
    {"bad-ground", "#fcebe9", "#3a1c1a"},
    // States.
    {"held", "#009e73", "#009e73"},
    {"coming", "#56b4e9", "#56b4e9"},
    {"going", "#f0e442", "#f0e442"},
    {"complete", "#e69f00", "#e69f00"},
    {"due", "#d55e00", "#d55e00"},
    {"updating", "#cc79a7", "#cc79a7"},
    {"nvme", "#0072b2", "#0072b2"},
    {"frozen", "#6b3d0c", "#6b3d0c"},
    {"resident", "#b4c8dc", "#3d566e"},
    {"absent", "#eceff3", "#222d37"},
    {"empty", "#ffffff", "#18212a"},
});

// The picture widths, in pixels, from which more details are shown.
constexpr std::array<int, 9> kRooms{240, 320, 420, 560, 720, 960, 1280, 1920, 3600};

std::string Variables(std::string_view Ink::*ground) {
  std::string text = ":root{";
  for (const Ink& ink : kInks)
    text += "--" + std::string(ink.name) + ":" + std::string(ink.*ground) + ";";
  return text + "}\n";
}

}  // namespace

std::span<const Ink> Inks() {
  return kInks;
}

std::span<const Ink> StateInks() {
  return std::span<const Ink>(kInks).subspan(kGrounds);
}

std::string PictureStyle(PictureHome home) {
  std::string text = Variables(&Ink::light) + "@media (prefers-color-scheme:dark){" +
                     Variables(&Ink::dark) + "}\n";
  for (const Ink& ink : kInks) {
    const std::string name(ink.name), colour = "var(--" + name + ")";
    text += ".ink-" + name + "{fill:" + colour + "}.line-" + name + "{fill:none;stroke:" + colour +
            ";stroke-width:1.8;stroke-linejoin:round}\n";
  }

  text +=
      ".picture{container-type:inline-size}.picture svg{display:block}\n"
      ".chart{overflow:visible;margin:4px 14px 0 64px;width:calc(100% - 78px)}\n"
      ".inner{overflow:visible;width:calc(100% - 24px)}"
      ".plot{overflow:visible;width:calc(100% - 64px)}.stripe rect{shape-rendering:crispEdges}\n"
      "svg text{font:12px system-ui,\"DejaVu Sans\",sans-serif;fill:var(--ink)}\n"
      "svg .headline{font-weight:bold;font-size:16px}svg .tick{font-size:11px;fill:var(--soft)}"
      "svg .end{text-anchor:end}svg .middle{text-anchor:middle}\n";

  text +=
      "svg .letter{font:700 11px ui-monospace,\"DejaVu Sans "
      "Mono\",monospace;text-anchor:middle;fill:#17212b}svg .pale{fill:#ffffff}\n"
      ".grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}"
      ".edge{stroke:var(--card);stroke-width:1.5}.frame{fill:none;stroke:var(--line)}\n"
      ".dash-1{stroke-dasharray:7 3}.dash-2{stroke-dasharray:2 3}\n";

  for (const int room : kRooms) {
    const std::string pixels = std::to_string(room);
    text += ".w" + pixels + "{display:none}" +
            (home == PictureHome::kPage ? "@container" : "@media") + " (min-width:" + pixels +
            "px){.w" + pixels + "{display:inline}}\n";
  }
  return text;
}

std::string RoomClass(double pixels) {
  const auto room = std::lower_bound(kRooms.begin(), kRooms.end(), pixels);
  return room == kRooms.begin() || room == kRooms.end() ? "" : " w" + std::to_string(*room);
}

bool FitsRoom(double pixels) {
  return pixels <= kRooms.back();
}

}  // namespace tidepool
