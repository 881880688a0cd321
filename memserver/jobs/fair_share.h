// FairShare: decides whose turn it is to use a resource that jobs compete for (workers, copies). It
// is deficit round robin by weight among the members of one priority, and strict priority between
// them, with promotion.
//
// One thread. It picks a member and is told what that member took; it knows neither jobs nor work.
// Members are numbered from 0 and may change between calls.
// Invariants: among members that always have something to take, what each takes is in proportion to
// its weight, up to one quantum and one item; a priority that has something to take gets
// kPromotedQuanta for every kPromotionQuanta quanta that higher ones took; no member saves up turns
// that it did not need.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/units.h"
#include "memserver/residency/quota.h"

namespace tidepool::memserver {

// A member's account of one resource.
struct Share {
  uint32_t weight = 1;
  Priority priority = Priority::kNormal;
  // What it may still take in this round; below 0 when an item was larger than the rest.
  int64_t deficit = 0;
  uint64_t served = 0;  // total since the start
};

class FairShare {
 public:
  // What weight 1 may take in a round. A member with larger items takes part in fewer rounds.
  static constexpr int64_t kQuantum = static_cast<int64_t>(kMiB);
  // When higher priorities have taken kPromotionQuanta, a waiting lower one takes the next
  // kPromotedQuanta: 1/17 of all.
  static constexpr int64_t kPromotionQuanta = 32, kPromotedQuanta = 2;

  explicit FairShare(int64_t quantum = kQuantum) : quantum_(quantum) {}

  // Lets one member take one item. `share(i)` is member i's Share; `take(i)` lets it take an item
  // and returns its cost, 0 when it has none. Priorities below `lowest` have to wait, and lose
  // nothing by it. False when no member has an item.
  template <typename ShareOf, typename Take>
  bool Serve(size_t members, ShareOf share, Take take, Priority lowest = Priority::kLow) {
    for (auto priority = static_cast<size_t>(lowest); priority + 1 < kPriorities; ++priority) {
      Turn& turn = turns_[priority];
      turn.promoted +=
          turn.passed_over / (kPromotionQuanta * quantum_) * kPromotedQuanta * quantum_;
      turn.passed_over %= kPromotionQuanta * quantum_;

      if (turn.promoted <= 0) continue;
      const int64_t cost = ServePriority(priority, members, share, take);
      turn.promoted = cost == 0 ? 0 : std::max(turn.promoted - cost, -kDebtQuanta * quantum_);
      if (cost > 0) return PassOver(priority, cost);
    }

    for (size_t priority = kPriorities; priority-- > static_cast<size_t>(lowest);) {
      const int64_t cost = ServePriority(priority, members, share, take);
      if (cost == 0) continue;
      // No higher priority has anything, so it owes them nothing.
      turns_[priority].promoted = std::max<int64_t>(turns_[priority].promoted, 0);
      return PassOver(priority, cost);
    }
    return false;
  }

  // Lets a member take one item out of turn, on account: the cost is counted, and a member that
  // owes a round's share has to wait for its turn. False when it owes that much or has no item.
  template <typename Take>
  bool ServeOutOfTurn(Share* member, Take take) {
    const auto priority = static_cast<size_t>(member->priority);
    int64_t& promoted = turns_[priority].promoted;
    if (member->deficit <= -quantum_ * member->weight || promoted <= -kPromotedQuanta * quantum_)
      return false;
    const auto cost = static_cast<int64_t>(take());
    if (cost == 0) return false;
    Charge(member, cost);
    promoted = std::max(promoted - cost, -kDebtQuanta * quantum_);
    return PassOver(priority, cost);
  }

 private:
  // An item may be at most this many times larger than what its member was due; the excess is
  // forgotten.
  static constexpr int64_t kDebtQuanta = 1024;

  // Cost of the item that a member of this priority took; 0: none has any.
  template <typename ShareOf, typename Take>
  int64_t ServePriority(size_t priority, size_t members, ShareOf share, Take take) {
    size_t& cursor = turns_[priority].cursor;
    Seen seen;
    size_t without = 0;  // consecutive members with no item or of another priority

    for (; without < members; ++seen.steps) {
      cursor = cursor < members ? cursor : 0;
      Share& member = share(cursor);
      const bool belongs = static_cast<size_t>(member.priority) == priority;

      if (belongs && member.deficit > 0) {
        const auto cost = static_cast<int64_t>(take(cursor));
        if (cost > 0) {
          Charge(&member, cost);
          if (seen.OnlyItself(cursor, members))
            member.deficit = std::max<int64_t>(member.deficit, 0);
          return cost;
        }
        // A member with nothing to do saves up nothing.
        member.deficit = 0;
        ++without;
      } else {
        if (belongs) seen.Debtor(cursor);
        without = belongs ? 0 : without + 1;
      }
      Advance(priority, members, share);
    }
    return 0;
  }

  // Begins the next member's turn and gives it one quantum for each unit of its weight.
  template <typename ShareOf>
  void Advance(size_t priority, size_t members, ShareOf share) {
    size_t& cursor = turns_[priority].cursor;
    cursor = cursor + 1 < members ? cursor + 1 : 0;
    Share& next = share(cursor);
    if (static_cast<size_t>(next.priority) == priority) next.deficit += quantum_ * next.weight;
  }

  // What a search saw before it found a member to serve: a member without competitors owes nothing.
  struct Seen {
    size_t steps = 0;
    std::optional<size_t> debtor;
    bool several = false;
    void Debtor(size_t member) {
      several |= debtor.value_or(member) != member;
      debtor = member;
    }
    bool OnlyItself(size_t member, size_t members) const {
      return steps + 1 >= members && !several && debtor.value_or(member) == member;
    }
  };

  void Charge(Share* member, int64_t cost) const {
    member->served += static_cast<uint64_t>(cost);
    member->deficit = std::max(member->deficit - cost, -kDebtQuanta * quantum_ * member->weight);
  }

  bool PassOver(size_t priority, int64_t cost) {
    for (size_t lower = 0; lower < priority; ++lower) turns_[lower].passed_over += cost;
    return true;
  }

  struct Turn {  // of one priority
    size_t cursor = 0;
    int64_t passed_over = 0;  // taken by higher priorities since the last promotion
    // What it may take before higher priorities; below 0 when an item was larger than the rest.
    int64_t promoted = 0;
  };

  const int64_t quantum_;
  std::array<Turn, kPriorities> turns_{};
};

}  // namespace tidepool::memserver
