#include "trainer/plan/use_trace.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

class Foresight {
 public:
  Foresight(const ChunkLayout& layout, Rank rank)
      : layout_(layout),
        uses_(layout.parameters.size(), 0),
        pins_(layout.chunks.size(), 0),
        gradients_(layout.chunks.size(), 0) {
    for (ChunkId chunk = 0; chunk < layout.TrainedChunks(); ++chunk) {
      if (layout.IsMember(chunk, rank)) mine_.push_back(chunk);
    }
  }

  void MicroBatch(const UseTrace& trace) {
    for (const UseEvent& event : trace.events) {
      switch (event.kind) {
        case UseEvent::Kind::kBegin: Begin(event.notes); break;
        case UseEvent::Kind::kEnd: End(); break;
        case UseEvent::Kind::kGradient:
          Gradient(layout_.parameters[layout_.of_note[event.notes[0]]].chunk);
          break;
      }
    }
    EndOfBackward();
  }

  void Uses(const UseTrace& trace) {
    for (const UseEvent& event : trace.events) {
      if (event.kind == UseEvent::Kind::kBegin) Begin(event.notes);
      if (event.kind == UseEvent::Kind::kEnd) End();
    }
  }

  AccessSchedule Take() { return std::move(schedule_); }

 private:
  struct Hold {
    std::vector<ParameterId> parameters;  // none: an enclosing operator uses them all
    std::vector<ChunkId> chunks;
  };

  void Enter(MomentKind kind, ChunkId subject) {
    Moment moment{kind, subject, pinned_};
    auto& moments = schedule_.moments;
    if (kind == MomentKind::kUse && !moments.empty() && moments.back() == moment) return;
    moments.push_back(std::move(moment));
  }

  void Begin(const std::vector<uint32_t>& notes) {
    Hold& hold = holds_.emplace_back();
    std::vector<ParameterId> touched;
    for (const uint32_t note : notes) touched.push_back(layout_.of_note[note]);
    if (std::all_of(touched.begin(), touched.end(),
                    [this](ParameterId parameter) { return uses_[parameter] > 0; }))
      return;

    hold.parameters = std::move(touched);
    bool nested = true;
    for (const ParameterId parameter : hold.parameters) {
      ++uses_[parameter];

      const ChunkId chunk = layout_.parameters[parameter].chunk;
      if (std::find(hold.chunks.begin(), hold.chunks.end(), chunk) != hold.chunks.end()) continue;
      hold.chunks.push_back(chunk);
      if (pins_[chunk]++ > 0) continue;
      nested = false;
      pinned_.insert(std::lower_bound(pinned_.begin(), pinned_.end(), chunk), chunk);
    }
    if (!nested) Enter(MomentKind::kUse, 0);
  }

  void End() {
    TP_CHECK(!holds_.empty(), "an operator ends that has begun");
    for (const ParameterId parameter : holds_.back().parameters) --uses_[parameter];
    for (const ChunkId chunk : holds_.back().chunks) {
      if (--pins_[chunk] == 0)
        pinned_.erase(std::lower_bound(pinned_.begin(), pinned_.end(), chunk));
    }
    holds_.pop_back();
  }

  void Gradient(ChunkId chunk) {
    ++gradients_[chunk];
    if (layout_.chunks[chunk].multi_use) return;
    if (gradients_[chunk] == 1) Enter(MomentKind::kGradient, chunk);
    if (gradients_[chunk] == layout_.chunks[chunk].parameter_count)
      Enter(MomentKind::kSubmit, chunk);
  }

  // Submits gradients that were kept apart first, then those that no operator of backward has
  // completed.
  void EndOfBackward() {
    const auto borrow = [this](ChunkId chunk) {
      Enter(MomentKind::kBorrow, chunk);
      Enter(MomentKind::kSubmit, chunk);
    };

    for (const ChunkId chunk : mine_) {
      if (layout_.chunks[chunk].multi_use && gradients_[chunk] > 0) borrow(chunk);
    }

    for (const ChunkId chunk : mine_) {
      const bool apart = layout_.chunks[chunk].multi_use;
      if (gradients_[chunk] == 0) {
        borrow(chunk);
      } else if (!apart && gradients_[chunk] < layout_.chunks[chunk].parameter_count) {
        Enter(MomentKind::kSubmit, chunk);
      }
      gradients_[chunk] = 0;
    }
  }

  const ChunkLayout& layout_;
  std::vector<ChunkId> mine_;        // trained, as a member of their group
  std::vector<uint32_t> uses_;       // by ParameterId: operators in flight
  std::vector<uint32_t> pins_;       // by ChunkId: likewise
  std::vector<uint32_t> gradients_;  // by ChunkId: parameters whose gradient has arrived
  std::vector<ChunkId> pinned_;      // ascending
  std::vector<Hold> holds_;
  AccessSchedule schedule_;
};

}  // namespace

uint32_t NotesOf(const UseTrace& trace) {
  uint32_t notes = 0;
  for (const UseEvent& event : trace.events) {
    for (const uint32_t note : event.notes) notes = std::max(notes, note + 1);
  }
  return notes;
}

std::vector<uint32_t> FirstUses(const UseTrace& trace, uint32_t notes) {
  std::vector<bool> seen(notes, false);
  std::vector<uint32_t> order;
  const auto add = [&](uint32_t note) {
    if (!seen[note]) order.push_back(note);
    seen[note] = true;
  };

  for (const UseEvent& event : trace.events) {
    if (event.kind == UseEvent::Kind::kBegin)
      std::for_each(event.notes.begin(), event.notes.end(), add);
  }
  for (uint32_t note = 0; note < notes; ++note) add(note);
  return order;
}

std::vector<bool> UsedBehindGradient(const UseTrace& trace, uint32_t notes) {
  std::vector<bool> complete(notes, false), again(notes, false);
  for (const UseEvent& event : trace.events) {
    for (const uint32_t note : event.notes) {
      if (complete[note]) again[note] = true;
      if (event.kind == UseEvent::Kind::kGradient) complete[note] = true;
    }
  }
  return again;
}

AccessSchedule ForeseeOrder(const UseTrace& trace, const ChunkLayout& layout, Rank rank,
                            uint32_t micro_batches) {
  Foresight foresight(layout, rank);
  for (uint32_t batch = 0; batch < micro_batches; ++batch) foresight.MicroBatch(trace);
  return foresight.Take();
}

AccessSchedule ForeseeUses(const UseTrace& trace, const ChunkLayout& layout, Rank rank) {
  Foresight foresight(layout, rank);
  foresight.Uses(trace);
  return foresight.Take();
}

}  // namespace tidepool::trainer
