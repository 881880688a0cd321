#include "trainer/comm/operation_check.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/planted.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kTagWords = (sizeof(OperationTag) + sizeof(uint64_t) - 1) / sizeof(uint64_t);

}  // namespace

OperationCheck::OperationCheck(const OperationTag& tag, const std::vector<uint64_t>& out,
                               const std::vector<uint64_t>& in)
    : world_(out.size()), own_(kTagWords + 2 * world_), all_(world_ * own_.size()) {
  TP_CHECK(in.size() == world_, "sizes for every rank of the group");
  std::memcpy(own_.data(), &tag, sizeof tag);
  std::copy_n(out.begin(), world_, own_.data() + kTagWords);
  std::copy_n(in.begin(), world_, own_.data() + kTagWords + world_);
}

OperationTag OperationCheck::TagOfRank(uint64_t rank) const {
  OperationTag tag;
  std::memcpy(static_cast<void*>(&tag), all_.data() + rank * own_.size(), sizeof tag);
  return tag;
}

uint64_t OperationCheck::BytesOfRank(uint64_t rank, uint64_t other, bool out) const {
  return all_[rank * own_.size() + kTagWords + (out ? 0 : world_) + other];
}

Status OperationCheck::Verdict() const {
  if (TP_PLANTED("comm.order_unchecked")) return {};
  const OperationTag first = TagOfRank(0);

  for (uint64_t rank = 1; rank < world_; ++rank) {
    const OperationTag tag = TagOfRank(rank);
    if (tag == first) continue;
    return Status(ErrorId::kCollectiveFailed, "ranks are in different operations: rank 0 in " +
                                                  first.Text() + ", rank " + std::to_string(rank) +
                                                  " in " + tag.Text());
  }

  for (uint64_t from = 0; from < world_; ++from) {
    for (uint64_t to = 0; to < world_; ++to) {
      const uint64_t sent = BytesOfRank(from, to, true), expected = BytesOfRank(to, from, false);
      if (sent == expected) continue;
      return Status(ErrorId::kCollectiveFailed,
                    "ranks differ in " + first.Text() + ": rank " + std::to_string(from) +
                        " sends " + std::to_string(sent) + " bytes to rank " + std::to_string(to) +
                        ", which expects " + std::to_string(expected));
    }
  }
  return {};
}

}  // namespace tidepool::trainer
