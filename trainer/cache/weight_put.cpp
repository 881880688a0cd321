#include "trainer/cache/weight_put.h"

#include <algorithm>

#include "base/check.h"
#include "base/units.h"

namespace tidepool::trainer {
namespace {

// A larger half would only delay the first copy, and a split master accepts no more in one put.
constexpr uint64_t kHalfBytesMax = 4 * kMiB;

}  // namespace

WeightPut::WeightPut(const ChunkLayout* layout, Rank rank, client::ChunkService* service,
                     CacheStreams streams)
    : layout_(layout),
      rank_(rank),
      service_(service),
      streams_(streams),
      cursors_(layout->chunks.size(), 0) {
  const client::Attachment& attachment = service->attachment();
  const uint64_t bytes = std::min(
      kHalfBytesMax, attachment.rcache_bytes / 2 / kParameterAlignBytes * kParameterAlignBytes);
  TP_CHECK(bytes > 0, "an rCache has room for two pieces");
  half_elements_ = bytes / sizeof(float);

  for (size_t i : {0, 1}) {
    halves_[i].at = attachment.rcache + i * bytes;
    if (streams_.device == nullptr) halves_[i].data = reinterpret_cast<float*>(halves_[i].at);
  }
}

Status WeightPut::MakeStaging() {
  if (halves_[0].data != nullptr) return {};
  TP_ASSIGN_OR_RETURN(
      staging_,
      RegisteredHost::Create(streams_.device, halves_.size() * half_elements_ * sizeof(float)));
  for (size_t i : {0, 1})
    halves_[i].data = reinterpret_cast<float*>(staging_.data()) + i * half_elements_;
  return {};
}

Status WeightPut::CopyToRcache(const Half& half) {
  if (streams_.device == nullptr) return {};
  streams_.compute->Copy(half.at, half.data, piece_.element_count * sizeof(float));
  streams_.compute->Synchronize(streams_.compute->Record());
  return streams_.compute->status();
}

Status WeightPut::Put(ParameterId parameter, const float* values) {
  const ParameterPlace& place = layout_->parameters[parameter];
  const ChunkPlace& chunk = layout_->chunks[place.chunk];
  if (!layout_->IsMember(place.chunk, rank_) || chunk.frozen) return {};
  if (NextParameter(place.chunk) != parameter) {
    return Status(ErrorId::kUsageError, "weights of " + place.name +
                                            " came out of the order of their chunk " +
                                            std::to_string(place.chunk));
  }

  TP_RETURN_IF_ERROR(MakeStaging());
  TP_RETURN_IF_ERROR(Append(place.chunk, nullptr, place.element_begin - cursors_[place.chunk]));
  TP_RETURN_IF_ERROR(Append(place.chunk, values, place.element_count));
  const bool last = parameter + 1 == chunk.first_parameter + chunk.parameter_count;
  return last ? Append(place.chunk, nullptr, chunk.elements - cursors_[place.chunk]) : Status();
}

Status WeightPut::PutMoment(ParameterId parameter, uint32_t plane, const float* values) {
  const ParameterPlace& place = layout_->parameters[parameter];
  if (!layout_->IsMember(place.chunk, rank_)) return {};
  TP_RETURN_IF_ERROR(MakeStaging());
  TP_RETURN_IF_ERROR(Flush());
  const uint64_t shard = layout_->ShardElements(place.chunk),
                 shard_begin = layout_->ShardIndex(place.chunk, rank_) * shard;
  uint64_t begin = std::max(place.element_begin, shard_begin);
  const uint64_t end = std::min(place.element_begin + place.element_count, shard_begin + shard);

  while (begin < end) {
    Half& half = halves_[filling_];
    TP_RETURN_IF_ERROR(WaitFor(&half));
    const uint64_t some = std::min(end - begin, half_elements_);
    piece_ = {place.chunk, begin, some, 0, plane};
    std::copy_n(values + (begin - place.element_begin), some, half.data);
    TP_RETURN_IF_ERROR(Flush());
    begin += some;
  }
  // If a server is killed with weights of this range but without the moment, the moment could not
  // be put any more.
  for (Half& half : halves_) TP_RETURN_IF_ERROR(WaitFor(&half));
  return {};
}

// A cursor is at the start of the chunk, after the last element of a parameter, or at the chunk's
// end.
ParameterId WeightPut::NextParameter(ChunkId chunk) const {
  const uint64_t cursor = cursors_[chunk];
  return cursor == 0 ? layout_->chunks[chunk].first_parameter
                     : layout_->ParameterAt(chunk, cursor - 1) + 1;
}

Status WeightPut::Append(ChunkId chunk, const float* values, uint64_t count) {
  const uint64_t shard = layout_->ShardElements(chunk),
                 shard_begin = layout_->ShardIndex(chunk, rank_) * shard;
  const uint64_t from = cursors_[chunk];
  cursors_[chunk] += count;
  // This rank's shard is one run of the caller's values.
  uint64_t begin = std::max(from, shard_begin);
  const uint64_t end = std::min(from + count, shard_begin + shard);
  while (begin < end) {
    if (piece_.element_count > 0 &&
        (piece_.chunk != chunk || piece_.element_count == half_elements_))
      TP_RETURN_IF_ERROR(Flush());

    Half& half = halves_[filling_];
    if (piece_.element_count == 0) {
      TP_RETURN_IF_ERROR(WaitFor(&half));
      piece_.chunk = chunk;
      piece_.element_begin = begin;
    }

    const uint64_t some = std::min(end - begin, half_elements_ - piece_.element_count);
    float* to = half.data + piece_.element_count;
    if (values != nullptr) {
      std::copy_n(values + (begin - from), some, to);
    } else {
      std::fill_n(to, some, 0.0f);
    }
    piece_.element_count += some;
    begin += some;
  }
  return {};
}

Status WeightPut::Flush() {
  if (piece_.element_count == 0) return {};
  TP_RETURN_IF_ERROR(CopyToRcache(halves_[filling_]));
  piece_.rcache_offset = filling_ * half_elements_ * sizeof(float);
  TP_ASSIGN_OR_RETURN(halves_[filling_].ticket, service_->StartPutWeights(piece_));
  bytes_put_ += piece_.element_count * sizeof(float);
  piece_.element_count = 0;
  piece_.plane = 0;
  filling_ ^= 1;
  return {};
}

Status WeightPut::WaitFor(Half* half) {
  if (half->ticket == 0) return {};
  const client::Ticket ticket = half->ticket;
  half->ticket = 0;
  return service_->Wait(ticket).status();
}

Status WeightPut::Finish() {
  for (ChunkId chunk = 0; chunk < layout_->TrainedChunks(); ++chunk) {
    if (layout_->IsMember(chunk, rank_) && cursors_[chunk] != layout_->chunks[chunk].elements) {
      return Status(
          ErrorId::kUsageError,
          "weights of " + layout_->parameters[NextParameter(chunk)].name + " were not given");
    }
  }
  TP_RETURN_IF_ERROR(Flush());
  TP_RETURN_IF_ERROR(WaitFor(&halves_[filling_]));  // the older one
  return WaitFor(&halves_[filling_ ^ 1]);
}

}  // namespace tidepool::trainer
