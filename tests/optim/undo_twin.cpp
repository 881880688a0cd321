#include "tests/optim/undo_twin.h"

#include "optim/update_rule.h"

namespace tidepool::optim {
namespace {

void Order() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

uint64_t TileCount(uint64_t piece, uint64_t tile) {
  return std::min(kTileElements, kPieceCounts[piece] - tile * kTileElements);
}

}  // namespace

UndoTwin::Place UndoTwin::Load(uint64_t worker, uint64_t piece) const {
  if (rules_.progress_per_piece) return {piece, world_.progress[piece].Load()};
  const uint64_t bits = world_.worker_progress[worker].load();
  return {bits >> 32,
          {kNewVersion, ((bits >> 2) & 0xFFFF) * kTileElements,
           static_cast<Progress::State>(bits & 3)}};
}

void UndoTwin::Store(uint64_t worker, const Place& place) {
  if (rules_.progress_per_piece) return world_.progress[place.piece].Store(place.progress);
  Order();
  world_.worker_progress[worker].store(place.piece << 32 |
                                       place.progress.begin / kTileElements << 2 |
                                       static_cast<uint64_t>(place.progress.state));
  Order();
}

void UndoTwin::Save(uint64_t worker, uint64_t piece, uint64_t tile) {
  UndoArea& area = world_.areas[worker][rules_.two_areas ? tile % 2 : 0];
  const uint64_t first = tile * kTileElements;
  if (rules_.clear_before_save) area.piece.store(0);
  Order();
  area.version = kNewVersion;
  area.begin = first;
  area.count = TileCount(piece, tile);
  const uint64_t bytes = area.count * 4;
  kernels_.copy(area.values, world_.master[piece] + 4 * first, bytes);
  kernels_.copy(area.values + bytes, world_.momentum[piece] + 4 * first, bytes);
  kernels_.copy(area.values + 2 * bytes, world_.variance[piece] + 4 * first, bytes);
  Order();
  area.piece.store(piece + 1);
}

void UndoTwin::Update(uint64_t piece, uint64_t tile) {
  const uint64_t first = tile * kTileElements;
  const uint64_t end = first + TileCount(piece, tile);
  for (const GroupRun& run : world_.runs[piece]) {
    const uint64_t begin = std::max(run.begin, first);
    const uint64_t stop = std::min(run.end, end);
    if (begin < stop)
      kernels_.update(run.factors, Slice(world_.PieceOf(piece).planes, begin, stop - begin));
  }
}

void UndoTwin::Run(uint64_t worker, uint64_t piece) {
  const Place at = Load(worker, piece);
  const bool begun = at.piece == piece && at.progress.version == kNewVersion;
  if (begun && at.progress.state == Progress::State::kFinished) return;
  for (uint64_t tile = begun ? at.progress.begin / kTileElements : 0;
       tile * kTileElements < kPieceCounts[piece]; ++tile) {
    const Place open{piece,
                     {kNewVersion, tile * kTileElements, Progress::State::kOpen, kTileElements}};
    if (!rules_.save_before_open) Store(worker, open);
    Save(worker, piece, tile);
    if (rules_.save_before_open) Store(worker, open);
    Update(piece, tile);
  }
  Store(worker, {piece, {kNewVersion, 0, Progress::State::kFinished}});
}

bool UndoTwin::RestoreTile(uint64_t piece, uint64_t tile) {
  for (UndoArea& area : world_.AllAreas()) {
    const uint64_t first = tile * kTileElements;
    if (area.piece.load() != piece + 1 || area.version != kNewVersion || area.begin != first)
      continue;
    const uint64_t bytes = area.count * 4;
    kernels_.copy(world_.master[piece] + 4 * first, area.values, bytes);
    kernels_.copy(world_.momentum[piece] + 4 * first, area.values + bytes, bytes);
    kernels_.copy(world_.variance[piece] + 4 * first, area.values + 2 * bytes, bytes);
    return true;
  }
  return false;
}

bool UndoTwin::Restore(uint64_t piece) {
  const Progress at = world_.progress[piece].Load();
  if (at.state != Progress::State::kOpen) return true;
  if (!RestoreTile(piece, at.begin / kTileElements)) return false;
  world_.progress[piece].Store({at.version, at.begin, Progress::State::kClosed});
  return true;
}

// A worker goes on with the piece that its word names.
bool UndoTwin::RestorePerWorker() {
  for (uint64_t worker = 0; worker < kWorkers; ++worker) {
    const Place at = Load(worker, 0);
    if (at.progress.state != Progress::State::kOpen) continue;
    if (!RestoreTile(at.piece, at.progress.begin / kTileElements)) return false;
    Store(worker, {at.piece, {kNewVersion, at.progress.begin, Progress::State::kClosed}});
  }
  // Worker 0 had pieces 0 and 1 in this order; the words tell no more.
  for (uint64_t piece : {Load(0, 0).piece, uint64_t{0}, uint64_t{1}}) Run(0, piece);
  Run(1, 2);
  return true;
}

bool UndoTwin::Recover() {
  if (!rules_.progress_per_piece) return RestorePerWorker();
  for (uint64_t piece = 0; rules_.restore_all_first && piece < kPieces; ++piece) {
    if (!Restore(piece)) return false;
  }
  constexpr uint64_t kWorkerOfPiece[kPieces] = {1, 0, 0};
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    if (!Restore(piece)) return false;
    Run(kWorkerOfPiece[piece], piece);
  }
  return true;
}

}  // namespace tidepool::optim
