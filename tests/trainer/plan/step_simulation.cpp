#include "tests/trainer/plan/step_simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "base/check.h"

namespace tidepool::trainer {
namespace {

constexpr double kGiga = 1e9;

// Time, and what happens at which.
class Events {
 public:
  double now() const { return now_; }
  void At(double when, std::function<void()> what) {
    waiting_.emplace(std::pair(when, number_++), std::move(what));
  }
  void Run() {
    while (!waiting_.empty()) {
      const auto first = waiting_.extract(waiting_.begin());
      now_ = first.key().first;
      first.mapped()();
    }
  }

 private:
  double now_ = 0;
  uint64_t number_ = 0;
  std::map<std::pair<double, uint64_t>, std::function<void()>> waiting_;
};

// Serves one job at a time, in the order of arrival.
class Server {
 public:
  explicit Server(Events* events) : events_(events) {}
  void Serve(double seconds, std::function<void()> then) {
    free_at_ = std::max(free_at_, events_->now()) + seconds;
    events_->At(free_at_, std::move(then));
  }

 private:
  Events* events_;
  double free_at_ = 0;
};

// A chunk that an operator or a gradient needs, and where its block comes from.
struct Need {
  uint64_t at = 0;     // before this moment
  uint64_t after = 0;  // the victim's last use is before this moment
  ChunkId chunk = 0;
  bool takes_block = false, has_victim = false;
};

// Decides all fetches of the step, moment by moment: the victim is used again last.
class Decisions {
 public:
  explicit Decisions(const SimulatedStep& step)
      : step_(step),
        reads_(step.layout->chunks.size()),
        present_(reads_.size(), false),
        holds_gradients_(reads_.size(), false) {
    for (uint64_t at = 0; at < Moments().size(); ++at) {
      const Moment& moment = Moments()[at];
      for (const ChunkId chunk : moment.chunks) reads_[chunk].push_back(at);
      if (moment.kind == MomentKind::kGradient) reads_[moment.subject].push_back(at);
    }
    for (uint64_t at = 0; at < Moments().size(); ++at) Decide(at);
  }

  const std::vector<Need>& needs() const { return needs_; }
  uint64_t blocks_max() const { return blocks_max_; }

 private:
  const std::vector<Moment>& Moments() const { return step_.order->moments; }
  bool IsResident(ChunkId chunk) const { return step_.layout->chunks[chunk].resident; }

  void Decide(uint64_t at) {
    const Moment& moment = Moments()[at];
    for (const ChunkId chunk : moment.chunks) Bring(chunk, at);
    if (moment.kind == MomentKind::kUse) return;
    if (moment.kind == MomentKind::kGradient) Bring(moment.subject, at);
    TP_CHECK(moment.kind != MomentKind::kBorrow || IsResident(moment.subject),
             "only resident chunks have gradients apart here");
    holds_gradients_[moment.subject] = moment.kind != MomentKind::kSubmit;
    if (moment.kind == MomentKind::kSubmit) Drop(moment.subject);
  }

  void Drop(ChunkId chunk) {
    if (present_[chunk] && !IsResident(chunk)) --blocks_;
    present_[chunk] = false;
  }

  void Bring(ChunkId chunk, uint64_t at) {
    if (present_[chunk]) return;
    Need need{.at = at, .chunk = chunk, .takes_block = !IsResident(chunk)};
    if (need.takes_block && blocks_ == step_.blocks) {
      const ChunkId victim = VictimAt(at);
      const std::vector<uint64_t>& reads = reads_[victim];
      need.has_victim = true;
      need.after = *std::prev(std::lower_bound(reads.begin(), reads.end(), at)) + 1;
      Drop(victim);
    }
    present_[chunk] = true;
    blocks_ += need.takes_block;
    blocks_max_ = std::max(blocks_max_, blocks_);
    needs_.push_back(need);
  }

  ChunkId VictimAt(uint64_t at) const {
    const std::vector<ChunkId>& used = Moments()[at].chunks;
    ChunkId victim = 0;
    uint64_t farthest = 0;
    for (ChunkId chunk = 0; chunk < present_.size(); ++chunk) {
      if (!present_[chunk] || holds_gradients_[chunk] || IsResident(chunk)) continue;
      if (std::find(used.begin(), used.end(), chunk) != used.end()) continue;
      const auto next = std::upper_bound(reads_[chunk].begin(), reads_[chunk].end(), at);
      const uint64_t when = next == reads_[chunk].end() ? UINT64_MAX : *next;
      if (when > farthest) farthest = when, victim = chunk;
    }
    TP_CHECK(farthest > 0, "the order runs in so many blocks");
    return victim;
  }

  const SimulatedStep& step_;
  std::vector<std::vector<uint64_t>> reads_;     // by ChunkId: moments that read it
  std::vector<bool> present_, holds_gradients_;  // by ChunkId
  uint64_t blocks_ = 0, blocks_max_ = 0;         // in use
  std::vector<Need> needs_;
};

class Simulation {
 public:
  Simulation(const SimulatedStep& step, const SimulatedMachine& machine)
      : step_(step),
        machine_(machine),
        decisions_(step),
        free_blocks_(step.blocks),
        up_(&events_),
        down_(&events_),
        between_(&events_),
        updates_(&events_) {}

  SimulatedResult Run() {
    Enter();
    events_.Run();
    TP_CHECK(moment_ == Moments().size() && to_update_.empty(), "the step ran to its end");
    result_.seconds = events_.now();
    result_.fetches = decisions_.needs().size();
    result_.blocks_max = decisions_.blocks_max();
    return result_;
  }

 private:
  const std::vector<Moment>& Moments() const { return step_.order->moments; }
  const std::vector<Need>& Needs() const { return decisions_.needs(); }
  double Ranks() const { return step_.layout->world; }
  double BytesOf(ChunkId chunk) const {
    return static_cast<double>(step_.layout->ChunkBytes(chunk));
  }

  // Goes on with the moments until one has to wait, or computes.
  void Enter() {
    while (moment_ < Moments().size() && !computes_) {
      StartFetches();
      if (arrived_ < Needs().size() && Needs()[arrived_].at <= moment_) return;
      const Moment& moment = Moments()[moment_];
      if (moment.kind == MomentKind::kSubmit) Submit(moment.subject);
      ++moment_;
      if (moment.kind != MomentKind::kUse || step_.seconds_of_use == 0) continue;
      computes_ = true;
      events_.At(events_.now() + step_.seconds_of_use, [this] {
        computes_ = false;
        Enter();
      });
    }
    StartFetches();
  }

  // A fetch needs its victim to be out of use, or a free block.
  void StartFetches() {
    while (started_ < Needs().size()) {
      const Need& need = Needs()[started_];
      const uint64_t over = moment_ - (computes_ ? 1 : 0);  // moments that have ended
      if (!step_.prefetches && need.at > over) return;
      if (need.has_victim && need.after > over) return;
      if (need.takes_block && !need.has_victim) {
        if (free_blocks_ == 0) return;
        --free_blocks_;
      }
      ++started_;
      Fetch(need.chunk);
    }
  }

  void Fetch(ChunkId chunk) {
    const double bytes = step_.whole ? BytesOf(chunk) : BytesOf(chunk) / Ranks();
    result_.bytes_up += static_cast<uint64_t>(bytes);
    up_.Serve(bytes * Ranks() / machine_.to_device / kGiga, [this, chunk] {
      between_.Serve(step_.whole ? 0 : SecondsBetween(chunk), [this] {
        ++arrived_;
        Enter();
      });
    });
  }

  // A gather, or a scatter: each rank sends its shard to all others, or theirs to them.
  double SecondsBetween(ChunkId chunk) const {
    if (machine_.between == 0) return 0;
    return BytesOf(chunk) * (Ranks() - 1) / Ranks() / machine_.between / kGiga;
  }

  void Submit(ChunkId chunk) {
    ++gradients_open_;
    between_.Serve((step_.whole ? 2 : 1) * SecondsBetween(chunk), [this, chunk] {
      const double bytes = BytesOf(chunk);
      result_.bytes_down += static_cast<uint64_t>(bytes / Ranks());
      down_.Serve(bytes / machine_.from_device / kGiga, [this, chunk] { Left(chunk); });
    });
  }

  void Left(ChunkId chunk) {
    if (!step_.layout->chunks[chunk].resident) ++free_blocks_;
    --gradients_open_;
    to_update_.push_back(chunk);
    if (step_.updates_at_once || (gradients_open_ == 0 && moment_ == Moments().size())) {
      for (const ChunkId each : to_update_) {
        const auto elements = static_cast<double>(step_.layout->chunks[each].elements);
        updates_.Serve(elements / machine_.host_update / kGiga, [] {});
      }
      to_update_.clear();
    }
    Enter();
  }

  const SimulatedStep& step_;
  const SimulatedMachine& machine_;
  const Decisions decisions_;
  Events events_;
  uint64_t free_blocks_;
  Server up_, down_, between_, updates_;
  uint64_t moment_ = 0, started_ = 0, arrived_ = 0, gradients_open_ = 0;
  bool computes_ = false;
  std::deque<ChunkId> to_update_;
  SimulatedResult result_;
};

}  // namespace

SimulatedResult SimulateStep(const SimulatedStep& step, const SimulatedMachine& machine) {
  return Simulation(step, machine).Run();
}

}  // namespace tidepool::trainer
