#include "trainer/output/server_lanes.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "trainer/output/trace_events.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kAskNs = 5 * kNsPerSecond;
constexpr std::string_view kOnGpu = "gpu_";  // begins the words of what is done on a rank's GPU
// Lanes of workers come first, then those of drives and those of ranks; the rows of a lane lie
// between them.
constexpr uint64_t kFirstDriveLane = 100'000, kFirstRankLane = 1'000'000, kLanesOfOne = 10'000;

struct Lane {
  std::string name;
  std::vector<TraceSlice> slices;
};

std::string ChunkText(const client::ServerSpan& span) {
  return "chunk " + std::to_string(span.chunk);
}

// The lane of a span, and its name.
std::pair<uint64_t, std::string> LaneOf(const client::ServerSpan& span) {
  if (span.worker) return {1 + *span.worker, "worker " + std::to_string(*span.worker)};
  if (span.drive) {
    const std::string of_drive = " of NVMe directory " + std::to_string(*span.drive);
    const uint64_t drive_lane = kFirstDriveLane + *span.drive * kLanesOfOne;
    if (span.what == "read") return {drive_lane, "reads" + of_drive};
    return {drive_lane + 1, "writes" + of_drive};
  }

  const uint64_t rank = span.rank.value_or(0);
  const std::string of_rank = " of rank " + std::to_string(rank);
  const uint64_t first = kFirstRankLane + rank * kLanesOfOne;
  if (span.what.starts_with(kOnGpu)) return {first + 3, "GPU" + of_rank};
  if (span.what == "fetch") return {first, "fetches" + of_rank};
  if (span.what == "gradient") return {first + 1, "gradients" + of_rank};
  return {first + 2, "weights" + of_rank};
}

// "update" of "gpu_update".
std::string WorkOf(const client::ServerSpan& span) {
  return span.what.starts_with(kOnGpu) ? span.what.substr(kOnGpu.size()) : span.what;
}

std::string NameOf(const client::ServerSpan& span) {
  if (span.rank && !span.what.starts_with(kOnGpu)) return ChunkText(span);
  const std::string piece = span.piece == 0 ? "" : ", piece " + std::to_string(span.piece);
  return WorkOf(span) + " " + ChunkText(span) + piece;
}

// Flows from the read of each piece to the first work behind it that uses what was read; scans and
// sums of gradients do not.
void AddReadFlows(const std::map<uint64_t, Lane>& lanes, TraceEvents* events) {
  // The name of a read without its first word names the piece, as that of the work does.
  const auto piece_of = [](const TraceSlice& slice) {
    return slice.name.substr(slice.name.find(' '));
  };
  std::map<std::string, std::vector<TraceSlice>> works;
  for (const auto& [number, lane] : lanes) {
    if (number >= kFirstDriveLane) break;
    for (const TraceSlice& slice : lane.slices) {
      const bool of_gradients = slice.name.starts_with("scan ") || slice.name.starts_with("sum ");
      if (!of_gradients) works[piece_of(slice)].push_back(slice);
    }
  }

  for (const auto& [number, lane] : lanes) {
    if (!lane.name.starts_with("reads")) continue;
    for (const TraceSlice& read : lane.slices) {
      const TraceSlice* first = nullptr;
      for (const TraceSlice& work : works[piece_of(read)]) {
        const bool earlier = first == nullptr || work.from_ns < first->from_ns;
        if (work.from_ns >= read.to_ns && earlier) first = &work;
      }
      if (first != nullptr) events->Add(TraceFlow{"read", read, *first});
    }
  }
}

// Flows from the last update of each chunk to the first copy that each rank has of it.
void AddUpdateFlows(const std::map<uint64_t, Lane>& lanes, TraceEvents* events) {
  std::map<int64_t, std::vector<TraceSlice>> updates;
  for (const auto& [number, lane] : lanes) {
    for (const TraceSlice& slice : lane.slices) {
      if (slice.name.starts_with("update")) updates[slice.chunk].push_back(slice);
    }
  }

  std::set<std::tuple<uint64_t, int64_t, int64_t>> seen;  // lane of the rank, chunk, update
  for (const auto& [number, lane] : lanes) {
    if (!lane.name.starts_with("fetches")) continue;
    for (const TraceSlice& copy : lane.slices) {
      const TraceSlice* last = nullptr;
      for (const TraceSlice& update : updates[copy.chunk]) {
        const bool later = last == nullptr || update.to_ns > last->to_ns;
        if (update.to_ns <= copy.from_ns && later) last = &update;
      }

      if (last != nullptr && seen.insert({number, copy.chunk, last->to_ns}).second)
        events->Add(TraceFlow{"updated", *last, copy});
    }
  }
}

}  // namespace

int64_t NsAhead(int64_t server_ns, int64_t asked_ns, int64_t answered_ns) {
  if (server_ns >= asked_ns && server_ns <= answered_ns) return 0;
  return server_ns - (asked_ns + (answered_ns - asked_ns) / 2);
}

void AddServerLanes(const std::vector<client::ServerSpan>& spans, TraceEvents* events) {
  if (spans.empty()) return;
  std::map<uint64_t, Lane> lanes;
  for (const client::ServerSpan& span : spans) {
    const auto [number, name] = LaneOf(span);
    Lane& lane = lanes[number];
    lane.name = name;

    lane.slices.push_back({.lane = number,
                           .name = NameOf(span),
                           .from_ns = span.begin_ns,
                           .to_ns = span.end_ns,
                           .chunk = static_cast<int64_t>(span.chunk)});
  }

  events->BeginProcess(kServerProcess, "memserver");
  for (auto& [number, lane] : lanes) {
    std::stable_sort(
        lane.slices.begin(), lane.slices.end(),
        [](const TraceSlice& a, const TraceSlice& b) { return a.from_ns < b.from_ns; });
    events->NameLane(number, lane.name);
    events->AddRows(lane.name, &lane.slices);
  }
  AddReadFlows(lanes, events);
  AddUpdateFlows(lanes, events);
}

Status ServerRecord::Begin() const {
  return client::RecordSpans(socket_dir_, job_, true, kAskNs);
}

Result<std::vector<client::ServerSpan>> ServerRecord::Take(int64_t since_ns) const {
  // An answer without spans is quick, and so tells the clocks apart well.
  const int64_t asked_ns = clock_->NowNs();
  TP_ASSIGN_OR_RETURN(const client::ServerSpans now,
                      client::AskSpans(socket_dir_, job_, INT64_MAX, kAskNs));
  if (!now.recording) return Status(ErrorId::kServerGone, "memserver was restarted meanwhile");
  const int64_t ahead_ns = NsAhead(now.now_ns, asked_ns, clock_->NowNs());

  TP_ASSIGN_OR_RETURN(client::ServerSpans all,
                      client::AskSpans(socket_dir_, job_, since_ns + ahead_ns, kAskNs));
  TP_RETURN_IF_ERROR(client::RecordSpans(socket_dir_, job_, false, kAskNs));
  std::vector<client::ServerSpan> spans;
  for (client::ServerSpan& span : all.spans) {
    span.begin_ns -= ahead_ns;
    span.end_ns -= ahead_ns;
    if (span.begin_ns >= since_ns) spans.push_back(std::move(span));
  }
  return spans;
}

}  // namespace tidepool::trainer
