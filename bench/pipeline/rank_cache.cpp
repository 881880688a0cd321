#include "bench/pipeline/rank_cache.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "bench/harness/die.h"

namespace tidepool::bench {

RankCache::RankCache(const Setup& setup)
    : setup_(setup),
      service_(setup.chunks),
      places_(setup.layout->chunks.size(), nullptr),
      room_of_(setup.layout->chunks.size(), 0) {
  room_bytes_ = RoundUp(setup.layout->chunks.front().elements * setup.chunks.gradient_element_bytes,
                        kPageBytes);
  const uint64_t tail = setup.rooms * room_bytes_;

  trainer::CacheSetup cache;
  cache.layout = setup.layout;
  cache.rank = setup.rank;
  cache.service = &service_;
  cache.groups.assign(setup.layout->data_groups.size(), nullptr);
  cache.clock = setup.clock;
  cache.options.prefetch_depth = setup.prefetch_depth;
  cache.options.separate_while_recording = false;
  cache.options.tail_bytes = tail;

  cache_ = OrDie(trainer::ParameterCache::Create(std::move(cache)));
  const client::Attachment& slot = service_.attachment();
  rooms_ = slot.rcache + slot.rcache_bytes - tail;
}

void RankCache::BeginStep(Version version) {
  free_.clear();
  for (uint32_t room = static_cast<uint32_t>(setup_.rooms); room-- > 0;) free_.push_back(room);
  leaving_.clear();
  computed_.clear();
  until_ns_ = setup_.clock->NowNs();
  OrDie(cache_->BeginPass(trainer::PassKind::kTrain, version));
}

void RankCache::CheckContent(uint32_t layer) {
  moves_.clear();
  cache_->TakeMoves(&moves_);
  for (const trainer::Move& move : moves_) places_[move.chunk] = move.block;
  for (const ChunkId chunk : (*setup_.chunks_of)[layer]) {
    if (places_[chunk] == nullptr ||
        !HasNumber({places_[chunk], setup_.layout->ChunkBytes(chunk)}, chunk))
      Die("a chunk's weights are not where its layer computes");
  }
}

void RankCache::Compute(uint32_t layer, int64_t duration_ns) {
  const std::vector<ChunkId>& chunks = (*setup_.chunks_of)[layer];
  StandFor([&] { OrDie(cache_->Acquire(chunks)); });
  CheckContent(layer);

  const int64_t start_ns = until_ns_;
  until_ns_ = start_ns + duration_ns;
  computed_.push_back({start_ns, until_ns_});
  const int64_t left_ns = until_ns_ - setup_.clock->NowNs();
  if (left_ns > 0) setup_.clock->SleepNs(left_ns);
  OrDie(cache_->Release(chunks));
}

void RankCache::OpenSums(uint32_t layer) {
  for (const ChunkId chunk : (*setup_.chunks_of)[layer]) {
    if (free_.empty()) {
      StandFor([&] { OrDie(cache_->AwaitSum(leaving_.front().first)); });
      free_.push_back(leaving_.front().second);
      leaving_.pop_front();
    }
    room_of_[chunk] = free_.back();
    free_.pop_back();
  }
}

void RankCache::HandIn(uint32_t layer) {
  for (const ChunkId chunk : (*setup_.chunks_of)[layer]) {
    std::byte* room = rooms_ + room_of_[chunk] * room_bytes_;
    std::memcpy(room, &chunk, sizeof(chunk));
    leaving_.emplace_back(OrDie(cache_->SubmitSum(chunk, room)), room_of_[chunk]);
  }
}

void RankCache::EndStep() {
  OrDie(cache_->FinishStep());
}

}  // namespace tidepool::bench
