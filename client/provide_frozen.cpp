#include "client/provide_frozen.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "shm/spec/frozen.h"

namespace tidepool::client {
namespace {

// The upload of one chunk. The two halves of the range alternate: one is in flight while the next
// is read.
class FrozenUpload {
 public:
  FrozenUpload(MemClient* client, const shm::JobSpec& spec, const UploadRange& range,
               const ReadFrozen& read)
      : client_(client),
        spec_(spec),
        range_(range),
        read_(read),
        half_bytes_(range.bytes / 2 / kPageBytes * kPageBytes) {
    TP_CHECK(half_bytes_ > 0, "an upload has two pages of the rCache or more");
  }

  Status Provide(size_t index) {
    const auto id = static_cast<ChunkId>(spec_.chunks.size() + index);
    const uint64_t bytes = shm::FrozenBytes(spec_.frozen[index]);
    for (;;) {
      TP_ASSIGN_OR_RETURN(const Ticket claim, client_->StartClaimFrozen(id));
      TP_ASSIGN_OR_RETURN(const Outcome outcome, client_->Wait(claim));
      if (outcome.bytes == bytes) return Status();
      const Status put = Put(index, id, bytes);
      // Another rank was faster, or memserver was restarted.
      const bool lost = put.id() == ErrorId::kUploadLost || put.id() == ErrorId::kChunkFrozen;
      if (!put.ok() && !lost) return put;
    }
  }
  uint64_t bytes_put() const { return bytes_put_; }

 private:
  Status Put(size_t index, ChunkId id, uint64_t bytes) {
    Status status;
    for (uint64_t begin = 0, turn = 0; begin < bytes && status.ok(); begin += half_bytes_, ++turn) {
      status = AwaitHalf(turn % 2);
      if (status.ok()) status = StartHalf(turn % 2, index, id, begin);
    }
    // Wait for both, whatever the result of the first.
    for (const uint64_t half : {0, 1}) {
      const Status ended = AwaitHalf(half);
      if (status.ok()) status = ended;
    }
    return status;
  }

  Status StartHalf(uint64_t half, size_t index, ChunkId id, uint64_t begin) {
    const uint64_t element_bytes = BytesOf(spec_.frozen[index].dtype),
                   offset = range_.rcache_offset + half * half_bytes_;
    const uint64_t count = std::min(half_bytes_, shm::FrozenBytes(spec_.frozen[index]) - begin);

    if (range_.copy) {
      between_.resize(count);
      TP_RETURN_IF_ERROR(read_(index, begin, between_));
      TP_RETURN_IF_ERROR(range_.copy(offset, between_));
    } else {
      TP_RETURN_IF_ERROR(read_(index, begin, {client_->attachment().rcache + offset, count}));
    }

    TP_ASSIGN_OR_RETURN(tickets_[half], client_->StartPutWeights({id, begin / element_bytes,
                                                                  count / element_bytes, offset}));
    return Status();
  }

  Status AwaitHalf(uint64_t half) {
    if (!tickets_[half]) return Status();
    const Ticket ticket = *tickets_[half];
    tickets_[half].reset();
    const auto outcome = client_->Wait(ticket);
    if (outcome.ok()) bytes_put_ += outcome.value().bytes;
    return outcome.status();
  }

  MemClient* const client_;
  const shm::JobSpec& spec_;
  const UploadRange range_;
  const ReadFrozen& read_;
  const uint64_t half_bytes_;
  std::array<std::optional<Ticket>, 2> tickets_;
  std::vector<std::byte> between_;  // source of copies to GPU memory
  uint64_t bytes_put_ = 0;
};

}  // namespace

Result<uint64_t> ProvideFrozen(MemClient* client, const shm::JobSpec& spec, Rank rank,
                               const UploadRange& range, const ReadFrozen& read) {
  if (spec.frozen.empty()) return uint64_t{0};
  TP_CHECK(client->attachment().flags == nullptr || range.copy,
           "an rCache that the rank brought is written by its streams");
  FrozenUpload upload(client, spec, range, read);

  for (const bool own : {true, false}) {
    for (size_t i = 0; i < spec.frozen.size(); ++i) {
      if ((i % spec.world == rank) == own) TP_RETURN_IF_ERROR(upload.Provide(i));
    }
  }
  return upload.bytes_put();
}

}  // namespace tidepool::client
