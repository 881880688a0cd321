#include "memserver/update/staging/spill_queue.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/buggify.h"
#include "base/check.h"
#include "base/hot.h"
#include "base/planted.h"
#include "base/point.h"
#include "memserver/update/staging/piece_place.h"
#include "optim/undo_tile.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {
constexpr uint32_t kNone = StagingTable::kNone;
}  // namespace

SpillQueue::SpillQueue(JobStates* states, JobId job, StateTier* tier)
    : states_(states),
      job_(job),
      tier_(tier),
      tasks_(static_cast<uint32_t>(states->spec().chunks.size())),
      finished_(static_cast<uint32_t>(states->spec().chunks.size())),
      staged_(tier == nullptr ? nullptr : &tier->staging(), PieceOwner::kSpillQueue, job),
      moves_(StateTier::kStagingSlots) {
  TP_CHECK(tier != nullptr || !states->spills(), "a job that spills has a tier");
}

void SpillQueue::Store(ChunkId chunk) {
  BeginTask({Kind::kStore, chunk, states_->epoch()});
}

void SpillQueue::Update(ChunkId chunk, uint64_t epoch) {
  BeginTask({Kind::kUpdate, chunk, epoch});
}

void SpillQueue::BeginTask(const Task& task) {
  Chunk& chunk = states_->chunk(task.chunk);
  chunk.pieces_left = chunk.pieces;
  tasks_.Push(task);
  if (ahead_ > 0) TakeOverAhead(task);
}

bool SpillQueue::ReadAhead(ChunkId chunk, uint32_t piece, uint64_t epoch) {
  if (over_ || staged_.count() >= kStagedPiecesMax ||
      !tier_->staging().HasRoomToSpare(states_->chunk(chunk).spill.directory))
    return false;
  BeginPiece({.task = {Kind::kUpdate, chunk, epoch}, .ahead = Ahead::kYes}, piece);
  return true;
}

bool SpillQueue::GiveBackAhead(std::optional<ChunkId> chunk) {
  const uint32_t before = ahead_;
  for (uint32_t staging = 0; staging < moves_.size() && ahead_ > 0; ++staging) {
    Move& move = moves_[staging];
    if (move.ahead != Ahead::kYes || move.task.chunk != chunk.value_or(move.task.chunk)) continue;
    --ahead_;
    move.ahead = Ahead::kGivenBack;
    // A read in flight may be dropped at once: its slot is left to the answer.
    const bool ready = staged_.at(staging).state == StagedState::kReady;
    if (ready || TP_BUGGIFY("spill.ahead_abandoned")) FreePiece(staging);
  }
  return ahead_ < before;
}

// Takes over what was read ahead for the newest task, as if the task had begun it: its first
// pieces, if the task is the next to begin. The rest would be begun again.
void SpillQueue::TakeOverAhead(const Task& task) {
  while (tasks_.size() == 1) {
    const uint32_t staging = staged_.Find([&](uint32_t slot, const StagedPiece& each) {
      const Move& move = moves_[slot];
      return move.ahead == Ahead::kYes && move.task.chunk == task.chunk &&
             move.task.epoch == task.epoch && each.piece == next_piece_;
    });
    if (staging == kNone) break;

    moves_[staging].ahead = Ahead::kNo;
    --ahead_;
    unpaid_bytes_ += 2 * PayloadOf(staging);
    PassPiece();
  }
  GiveBackAhead(task.chunk);
}

void SpillQueue::PassPiece() {
  if (++next_piece_ < states_->chunk(tasks_.Front().chunk).pieces) return;
  tasks_.Pop();
  next_piece_ = 0;
}

uint64_t SpillQueue::BeginNext() {
  if (over_ || tasks_.empty() || staged_.count() >= kStagedPiecesMax) return 0;
  const Task task = tasks_.Front();
  const Chunk& chunk = states_->chunk(task.chunk);
  if (!tier_->staging().HasRoom(chunk.spill.directory)) return 0;
  const uint32_t piece = next_piece_;
  PassPiece();

  // A former server may have stored some pieces.
  const bool stored = task.kind == Kind::kStore &&
                      ProgressOf(chunk, piece)->Load().state == optim::Progress::State::kFinished;
  if (!stored) return BeginPiece({.task = task}, piece) + std::exchange(unpaid_bytes_, 0);
  EndPiece(task);
  return 1;
}

uint64_t SpillQueue::BeginPiece(const Move& move, uint32_t piece) {
  const Task& task = move.task;
  const auto staging = staged_.Take(states_->chunk(task.chunk).spill.directory, task.chunk, piece);
  TP_CHECK(staging.has_value(), "there was staging");
  ahead_ += move.ahead == Ahead::kYes ? 1 : 0;
  moves_[*staging] = move;
  if (task.kind != Kind::kStore) Transfer(*staging, nvme::IoKind::kRead, task.epoch);
  return PayloadOf(*staging) * (task.kind == Kind::kUpdate ? 2 : 1);
}

bool SpillQueue::BeginPutOff(int64_t now_ns) {
  bool begun = false;
  while (!over_ && staged_.count() < kStagedPiecesMax && !put_off_.empty()) {
    const auto due = put_off_.TakeDue(now_ns, tier_->staging());
    if (!due) break;
    const Task task{due->update ? Kind::kUpdate : Kind::kStore, due->chunk,
                    due->update ? due->epoch - 1 : due->epoch};
    // The update restarts from the former epoch's slot, so its counts are reset.
    const Chunk& chunk = states_->chunk(due->chunk);
    if (due->update)
      ProgressOf(chunk, due->piece)->Store({chunk.version, 0, optim::Progress::State::kFinished});
    BeginPiece({.task = task, .times_put_off = due->times + 1}, due->piece);
    begun = true;
  }
  return begun;
}

uint64_t SpillQueue::PayloadOf(uint32_t staging) const {
  const StagedPiece& piece = staged_.at(staging);
  return PayloadOfPiece(*states_, piece.chunk, piece.piece);
}

nvme::PieceName SpillQueue::NameOf(uint32_t staging, uint64_t epoch) const {
  const StagedPiece& piece = staged_.at(staging);
  nvme::PieceName name = NameOfPiece(*tier_, *states_, piece, epoch);
  if (TP_PLANTED("update.one_slot"))
    name.place -= epoch % 2 * states_->chunk(piece.chunk).spill.slot_bytes;
  return name;
}

PieceBuffer SpillQueue::BufferOf(uint32_t staging) const {
  const Task& task = moves_[staging].task;
  PieceBuffer piece = tier_->PieceIn(staging, PayloadOf(staging));
  piece.is = NameOf(staging, task.epoch);
  piece.becomes = NameOf(staging, task.kind == Kind::kUpdate ? task.epoch + 1 : task.epoch);
  return piece;
}

void SpillQueue::Transfer(uint32_t staging, nvme::IoKind kind, uint64_t epoch) {
  StagedPiece& piece = staged_.at(staging);
  const bool read = kind == nvme::IoKind::kRead;
  piece.reads += read ? 1 : 0;

  if (std::byte* const fallback_slot =
          states_->fallback_slots().Find(piece.chunk, piece.piece, epoch)) {
    const std::span<std::byte> image = tier_->Image(staging, PayloadOf(staging));
    std::memcpy(read ? image.data() : fallback_slot, read ? fallback_slot : image.data(),
                image.size());
    piece.state = StagedState::kReady;
    if (!read) EndWrite(staging);
    return;
  }

  const uint64_t nonce = states_->record().nonce;
  tier_->Start(staging, {.kind = kind,
                         .offset = NameOf(staging, epoch).place,
                         .payload_bytes = PayloadOf(staging),
                         .range = piece.chunk < states_->demoted() ? DemotedKey(nonce) : nonce});
}

TP_HOT uint32_t SpillQueue::OldestReady(bool updates) const {
  return staged_.FindOldest([&](uint32_t slot, const StagedPiece& each) {
    const Move& move = moves_[slot];
    return each.state == StagedState::kReady && move.ahead == Ahead::kNo &&
           (move.task.kind == Kind::kUpdate) == updates;
  });
}

bool SpillQueue::NextUpdate(bool may_begin, ReadyPiece* ready) {
  const uint32_t staging = OldestReady(true);
  if (staging == kNone) return false;
  StagedPiece& piece = staged_.at(staging);
  const Chunk& chunk = states_->chunk(piece.chunk);
  if (chunk.state == ChunkState::kUpdateDue && (!may_begin || chunk.readers > 0)) return false;
  piece.state = StagedState::kAtWorker;
  *ready = {piece.chunk, piece.piece, BufferOf(staging)};
  return true;
}

TP_HOT bool SpillQueue::NextLoadWork(Work* work) {
  const uint32_t staging = OldestReady(false);
  if (staging == kNone) return false;
  StagedPiece& piece = staged_.at(staging);
  piece.state = StagedState::kAtWorker;
  const Chunk& chunk = states_->chunk(piece.chunk);
  const uint64_t begin = piece.piece * shm::kPieceElements;

  *work = Work{};
  work->staged = BufferOf(staging);
  work->count = ElementsOfPiece(chunk, piece.piece);
  work->name = {WorkKind::kStage, job_, 0, piece.chunk, piece.piece};
  if (moves_[staging].task.kind == Kind::kStore) {
    work->planes.count = work->count;
    PointIntoStaging(states_->spec(), piece.chunk, work->staged.payload, &work->planes);
    work->from = states_->weights().PutBytes(piece.chunk, begin);
    work->moments = states_->weights().landing().From(piece.chunk, begin);
    if (chunk.is_split()) work->copy = states_->weights().PutHighBytes(piece.chunk, begin);
    return true;
  }

  work->name.kind = WorkKind::kUnstage;
  work->to = chunk.planes.param16 + begin * BytesOf(chunk.dtype);
  work->from = work->staged.payload.data();
  work->dtype = chunk.dtype;
  return true;
}

void SpillQueue::EndWork(const WorkDone& done) {
  const uint32_t staging = staged_.FindAtWorker(done.name.chunk, done.name.index);
  if (over_) return FreePiece(staging);
  const Task task = moves_[staging].task;
  if (!done.intact) {
    if (staged_.at(staging).reads < kReadsMax)
      return Transfer(staging, nvme::IoKind::kRead, task.epoch);
    return Fail(staging, Status(ErrorId::kNvmeDataBad, Where(staging) + " cannot be trusted: " +
                                                           WhyNotIntact(BufferOf(staging))));
  }

  TP_POINT("server.piece_staged");
  if (task.kind != Kind::kUnstage)
    return Transfer(staging, nvme::IoKind::kWrite, BufferOf(staging).becomes.epoch);
  FreePiece(staging);
  EndPiece(task);
}

void SpillQueue::EndTransfer(const TierDone& done) {
  StagedPiece& piece = staged_.at(done.staging);
  Move& move = moves_[done.staging];
  // An unwritten piece was given up and is not settled yet.
  TP_CHECK(piece.state == StagedState::kReading || piece.state == StagedState::kWriting ||
               piece.state == StagedState::kUnwritten,
           "what a transfer moved waits for its answer");
  // A failed read ahead is repeated when it is due.
  const bool failed_ahead = move.ahead == Ahead::kYes && done.error != 0;
  if (over_ || move.ahead == Ahead::kGivenBack || failed_ahead) return FreePiece(done.staging);

  const bool read = done.kind == nvme::IoKind::kRead;
  if (done.error != 0 && read) return FailRead(done);
  if (done.error != 0) {
    piece.state = StagedState::kUnwritten;
    move.error = done.error;
    move.failed_at = done.offset;
    return;
  }
  if (!read) return EndWrite(done.staging);
  piece.state = StagedState::kReady;
}

// The job cannot continue: the other slot never has this epoch.
void SpillQueue::FailRead(const TierDone& done) {
  Fail(done.staging, Status(ErrorId::kNvmeIoFailed,
                            Where(done.staging) + " cannot be read at offset " +
                                std::to_string(done.offset) + ": " + std::strerror(done.error))
                         .Where(tier_->directory(done.directory).path));
}

// The piece is where later reads look for it.
void SpillQueue::EndWrite(uint32_t staging) {
  TP_POINT("server.piece_written");
  const Task task = moves_[staging].task;
  if (task.kind == Kind::kStore) {
    ProgressOf(states_->chunk(task.chunk), staged_.at(staging).piece)
        ->Store({0, 0, optim::Progress::State::kFinished});
    TP_POINT("server.piece_stored");
  }
  FreePiece(staging);
  EndPiece(task);
}

bool SpillQueue::NextUnwritten(Unwritten* unwritten) const {
  const uint32_t staging = staged_.FindIn(StagedState::kUnwritten);
  if (staging == kNone) return false;
  const StagedPiece& piece = staged_.at(staging);
  const Move& move = moves_[staging];
  const bool update = move.task.kind == Kind::kUpdate;

  *unwritten = {.staging = staging,
                .chunk = piece.chunk,
                .piece = piece.piece,
                .directory = piece.directory,
                .offset = move.failed_at,
                .error = move.error,
                .times = move.times_put_off,
                .out = piece.in_transfer,
                .update = update,
                .epoch = move.task.epoch + (update ? 1 : 0)};
  return true;
}

bool SpillQueue::KeepInPool(const Unwritten& unwritten) {
  const FallbackSlot at{.chunk = unwritten.chunk,
                        .piece = unwritten.piece,
                        .slot = static_cast<uint32_t>(unwritten.epoch % 2),
                        .error = unwritten.error,
                        .extent = {}};
  const auto image = tier_->Image(unwritten.staging, PayloadOf(unwritten.staging));
  if (!states_->fallback_slots().Add(at, image, states_->chunk(unwritten.chunk).record))
    return false;
  EndWrite(unwritten.staging);
  return true;
}

void SpillQueue::GiveUp(const TierLate& late) {
  StagedPiece& piece = staged_.at(late.staging);
  Move& move = moves_[late.staging];
  TP_CHECK(piece.state == StagedState::kReading || piece.state == StagedState::kWriting,
           "what is given up is in a transfer");
  if (over_ || move.ahead != Ahead::kNo) return FreePiece(late.staging);
  if (piece.state == StagedState::kReading) return FailStalled(late.staging, "read");
  // The system only reads the memory, so its contents are whole.
  piece.state = StagedState::kUnwritten;
  move.error = ETIMEDOUT;
  move.failed_at = late.offset;
}

void SpillQueue::FailUnwritten(const Unwritten& unwritten) {
  FailStalled(unwritten.staging, "written, and the pool has no room for it");
}

void SpillQueue::FailStalled(uint32_t staging, const char* what) {
  const std::string& path = tier_->directory(staged_.at(staging).directory).path;
  Fail(staging, Status(ErrorId::kNvmeStalled,
                       "the drive has not answered: " + Where(staging) + " cannot be " + what)
                    .Where(path));
}

void SpillQueue::PutOff(const Unwritten& unwritten, int64_t due_ns) {
  put_off_.Add(unwritten, due_ns);
  FreePiece(unwritten.staging);
}

void SpillQueue::FreePiece(uint32_t staging) {
  ahead_ -= moves_[staging].ahead == Ahead::kYes ? 1 : 0;
  moves_[staging].ahead = Ahead::kNo;
  staged_.Free(staging);
}

void SpillQueue::EndPiece(const Task& task) {
  Chunk& chunk = states_->chunk(task.chunk);
  TP_CHECK(chunk.pieces_left > 0, "a piece ends once");
  if (--chunk.pieces_left > 0) return;
  // The upper halves of a split master are where they are fetched from since they were put.
  const bool lacks_copy = chunk.planes.param16 != nullptr && !chunk.is_split();
  if (task.kind == Kind::kStore && lacks_copy)
    return BeginTask({Kind::kUnstage, task.chunk, task.epoch});
  finished_.Push({task.chunk, task.kind == Kind::kUpdate});
}

bool SpillQueue::TakeFinished(Finished* finished) {
  if (over_ || finished_.empty()) return false;
  *finished = finished_.Front();
  finished_.Pop();
  return true;
}

std::string SpillQueue::Where(uint32_t staging) const {
  const StagedPiece& piece = staged_.at(staging);
  return "piece " + std::to_string(piece.piece) + " of chunk " + std::to_string(piece.chunk) +
         " of job " + std::to_string(job_) + " (" + states_->spec().name + ")";
}

void SpillQueue::Fail(uint32_t staging, Status why) {
  failure_ = std::move(why);
  FreePiece(staging);
  Abandon();
}

void SpillQueue::Abandon() {
  over_ = true;
  put_off_.Clear();
  for (uint32_t staging = 0; staging < moves_.size() && staged_.count() > 0; ++staging) {
    if (!staged_.Has(staging)) continue;
    const StagedState state = staged_.at(staging).state;
    if (state == StagedState::kReady || state == StagedState::kUnwritten) FreePiece(staging);
  }
}

}  // namespace tidepool::memserver
