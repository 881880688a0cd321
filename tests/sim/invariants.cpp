#include "tests/sim/invariants.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "memserver/residency/kept/job_records.h"
#include "memserver/jobs/admission/build_ledger.h"
#include "memserver/update/work.h"
#include "nvme/piece.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

// What was taken is what the job counts; its planes, as far as they have their places, lie in it.
void CheckRuns(const JobStates& states) {
  uint64_t bytes = 0, used = 0;
  for (const Extent& run : states.placement().runs()) bytes += run.bytes;
  for (const Extent& extent : states.extents()) used += extent.bytes;
  TP_CHECK(bytes == states.placement().pool_bytes() && used <= bytes,
           "a job holds the runs that are counted, and lies in them");
}

IndexContents ReadIndexOf(const ServeWorld& world) {
  static std::vector<std::byte> bytes(kIndexBytes);  // read often: allocated once
  const auto got = pread(world.index().fd(), bytes.data(), bytes.size(), 0);
  TP_CHECK(got == static_cast<ssize_t>(bytes.size()), "the index can be read");
  auto contents = ReadIndex(bytes);
  TP_CHECK(contents.ok() && contents->damaged_slots == 0, "the index is whole");
  return std::move(contents).value();
}

uint64_t RanksMask(uint32_t world) {
  return world == 64 ? ~uint64_t{0} : (uint64_t{1} << world) - 1;
}

// Elements [begin, end) of a plane with `element_bytes` each, as they are and as they should be.
bool SameElements(const std::byte* is, const std::vector<std::byte>& should, uint64_t element_bytes,
                  uint64_t begin, uint64_t end) {
  return should.empty() || begin == end ||
         std::memcmp(is + begin * element_bytes, should.data() + begin * element_bytes,
                     (end - begin) * element_bytes) == 0;
}

struct MomentPlane {
  StateForm form;
  uint64_t elements;
};

bool SameMoment(const MomentPlane& plane, const std::byte* is, const std::vector<std::byte>& should,
                uint64_t begin, uint64_t end) {
  const uint64_t element_bytes = MomentBytes(plane.form, 64) / 64;
  if (!SameElements(is, should, element_bytes, begin, end)) return false;
  if (plane.form != StateForm::kSplit8 || should.empty()) return true;
  const uint64_t at = ScalesOffset(plane.elements);
  const std::vector<std::byte> scales(should.begin() + static_cast<ptrdiff_t>(at), should.end());
  return SameElements(is + at, scales, sizeof(float), begin / kScaleBlockElements,
                      DivideUp(end, kScaleBlockElements));
}

// Elements [begin, end) of one chunk: are they those of `planes`? A 16-bit copy of a tile that an
// update had begun may be either's.
void CompareRange(const Chunk& chunk, const JobTwin::Planes& planes, StateForm form,
                  std::pair<uint64_t, uint64_t> range, bool with_copy) {
  const auto [begin, end] = range;
  const MomentPlane moment{form, chunk.elements};
  TP_CHECK(SameElements(chunk.planes.master, planes.master, IsSplit(form) ? 2 : 4, begin, end),
           "the master plane holds its version");
  TP_CHECK(SameMoment(moment, chunk.planes.momentum, planes.momentum, begin, end),
           "the momentum plane holds its version");
  TP_CHECK(SameMoment(moment, chunk.planes.variance, planes.variance, begin, end),
           "the variance plane holds its version");
  if (!with_copy && !IsSplit(form)) return;
  TP_CHECK(SameElements(chunk.planes.param16, planes.param16, 2, begin, end),
           "the 16-bit plane holds its version");
}

// A chunk that waits for its update to `sealed`, or is in it.
void CompareTiles(const Chunk& chunk, const SimJob& model, ChunkId id, Version sealed) {
  const StateForm form = model.spec().StatesOf(id);
  for (uint32_t piece = 0; piece < chunk.pieces; ++piece) {
    const optim::Progress at = ProgressOf(chunk, piece)->Load();
    const bool begun = at.version == sealed;
    TP_CHECK(!begun || at.state != optim::Progress::State::kOpen, "between turns no tile is open");
    const uint64_t first = piece * shm::kPieceElements;
    const uint64_t end = std::min(first + shm::kPieceElements, chunk.elements);
    uint64_t passed = first;
    if (begun)
      passed =
          at.state == optim::Progress::State::kFinished ? end : std::min(end, first + at.begin);
    CompareRange(chunk, model.twin().planes(id, 0), form, {first, passed}, true);
    // A worker that was killed may have left the next tile's 16-bit form, which is written again.
    const uint64_t next = begun ? std::min(end, passed + optim::kTileElementsMax) : passed;
    CompareRange(chunk, model.twin().planes(id, 1), form, {passed, next}, false);
    CompareRange(chunk, model.twin().planes(id, 1), form, {next, end}, true);
  }
}

// As the next server would read it: from the pool where a place there stands in, else from the
// drive.
void CheckSpilledPiece(ServeWorld* world, const Job& job, const nvme::PieceName& name,
                       const JobTwin::Planes& planes) {
  const Chunk& chunk = job.states->chunk(name.chunk);
  const uint64_t first = name.piece * shm::kPieceElements;
  const uint64_t elements = std::min(shm::kPieceElements, chunk.elements - first);
  const std::byte* image = job.states->fallback_slots().Find(name.chunk, name.piece, name.epoch);
  if (image == nullptr) image = world->disk().bytes(3 * chunk.spill.directory).data() + name.place;
  nvme::PieceHeader header;
  std::memcpy(&header, image, sizeof header);
  const std::span<const std::byte> payload(
      image + sizeof header, shm::SpilledPieceBytes(job.spec(), name.chunk, elements));
  TP_CHECK(nvme::VerifyPiece(header, name, payload).ok(),
           "a piece of a published version lies whole where it is looked for");
  const StateForm form = job.spec().StatesOf(name.chunk);
  const shm::SpilledPiece at = shm::SpilledPieceOf(job.spec(), name.chunk, elements);
  const auto same = [&](uint64_t begin, const std::vector<std::byte>& plane, uint64_t plane_begin,
                        uint64_t bytes) {
    return plane.empty() ||
           std::memcmp(payload.data() + begin, plane.data() + plane_begin, bytes) == 0;
  };
  const auto same_moment = [&](uint64_t begin, const std::vector<std::byte>& plane) {
    const uint64_t bytes = MomentBytes(form, 64) / 64;
    if (!same(begin, plane, first * bytes, elements * bytes)) return false;
    if (form != StateForm::kSplit8) return true;
    const uint64_t scales_at =
        ScalesOffset(chunk.elements) + first / kScaleBlockElements * sizeof(float);
    return same(begin + ScalesOffset(elements), plane, scales_at,
                DivideUp(elements, kScaleBlockElements) * sizeof(float));
  };
  TP_CHECK(same(0, planes.master, MasterBytes(form, first), MasterBytes(form, elements)),
           "its master has its version");
  TP_CHECK(same_moment(at.momentum, planes.momentum) && same_moment(at.variance, planes.variance),
           "its moments have their version");
  TP_CHECK(!IsSplit(form) || same(at.high, planes.param16, first * 2, elements * 2),
           "its upper halves have their version");
}

// The version that is published lies on the drive; that of the step before too, until the new one
// is published.
void CheckSpilled(ServeWorld* world, const Job& job, const SimJob& model, ChunkId id) {
  const JobStates& states = *job.states;
  const Chunk& chunk = states.chunk(id);
  const bool due = chunk.version != states.sealed_version();
  const uint64_t epoch = states.epoch() - (due && states.last_step().skipped == 0 ? 1 : 0);
  for (uint32_t piece = 0; piece < chunk.pieces; ++piece) {
    const uint64_t place = chunk.spill.offset + epoch % 2 * chunk.spill.slot_bytes +
                           shm::PieceOffset(job.spec(), id, piece);
    const uint64_t store = world->tier().store_nonce(chunk.spill.directory);
    const nvme::PieceName name{.store = store,
                               .job = job.nonce,
                               .chunk = id,
                               .piece = piece,
                               .epoch = epoch,
                               .place = place};
    CheckSpilledPiece(world, job, name, model.twin().planes(id, due ? 1 : 0));
  }
  if (due || !states.weights().HoldsWeights(id)) return;
  const auto copy = model.twin().ParameterBytes(id, 0);
  TP_CHECK(std::memcmp(states.table().ParameterBytes(chunk, 0), copy.data(), copy.size()) == 0,
           "what is fetched has its version");
}

void CheckLoading(const Job& job, const SimJob& model, ChunkId id) {
  const Chunk& chunk = job.states->chunk(id);
  if (chunk.planes.master == nullptr) return;  // they land elsewhere, and may have been stored
  for (Rank rank = 0; rank < job.spec().world; ++rank) {
    if (!job.spec().IsMember(id, rank)) continue;
    const uint64_t begin = job.states->ShardBegin(id, rank);
    const uint64_t kept =
        job.states->intake(id, rank).record->put_elements.load(std::memory_order_relaxed);
    TP_CHECK(kept <= chunk.shard_elements, "a shard holds what it has room for");
    const JobTwin::Planes& should = model.twin().planes(id, 0);
    const bool split = chunk.is_split();
    TP_CHECK(SameElements(chunk.planes.master, should.master, split ? 2 : 4, begin, begin + kept),
             "weights that were kept are there");
    TP_CHECK(!split || SameElements(chunk.planes.param16, should.param16, 2, begin, begin + kept),
             "and their upper halves");
  }
}

}  // namespace

void CheckPoolBytes(ServeWorld* world) {
  uint64_t used = 0;
  for (const Job* job : world->tables().AllJobs()) used += job->states->pool_bytes();
  used += world->tables().frozen->pool_bytes();
  TP_CHECK(used + world->pool().free_bytes() == world->pool().total_bytes(), "pool bytes add up");
  LoopNeighbours neighbours;
  neighbours.clock = &world->clock();
  neighbours.pool = &world->pool();
  const Ledger ledger =
      BuildLedger(neighbours, world->options().loop, world->tables(), world->jobs().settings());
  used += world->tables().frozen->promised_bytes();
  TP_CHECK(ledger.PoolUsed() == used, "the ledger has what the table has");
  uint64_t on_nvme = 0;
  for (const Holding& holding : ledger.holdings) on_nvme += holding.nvme_bytes;
  TP_CHECK(on_nvme == (world->has_tier() ? world->tier().used_bytes() : 0), "of the drives too");
}

void CheckExtents(ServeWorld* world) {
  static std::vector<Extent> all;  // every turn: allocated once
  all.clear();
  for (const Job* job : world->tables().AllJobs())
    all.insert(all.end(), job->states->extents().begin(), job->states->extents().end());
  for (const auto& [name, chunk] : world->tables().frozen->chunks()) all.push_back(chunk->extent);
  for (const Job* job : world->tables().AllJobs()) CheckRuns(*job->states);
  std::sort(all.begin(), all.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  uint64_t end = world->pool().own_records().size();
  for (const Extent& extent : all) {
    TP_CHECK(extent.offset >= end, "no place of the pool is used twice");
    end = extent.offset + extent.bytes;
  }
}

void CheckFrozen(const Tables& tables, bool with_bytes) {
  for (const auto& [name, chunk] : tables.frozen->chunks()) {
    uint32_t holders = 0, copies = 0;
    for (const Job* job : tables.AllJobs()) {
      for (const FrozenUse& use : job->states->frozen())
        holders += use.chunk == chunk.get() ? 1 : 0;
    }
    for (const FrozenChunk* leaving : tables.frozen->leaving())
      holders += leaving == chunk.get() ? 1 : 0;
    bool uploads = chunk->uploader == 0;
    for (const auto& slot : tables.slots) {
      if (slot->session == nullptr) continue;
      uploads = uploads || slot->session->id() == chunk->uploader;
      const CopyLane& lane = slot->session->lane();
      for (uint32_t i = 0; i < lane.size(); ++i) {
        const shm::Request& request = lane.at(i).request;
        const bool is_put = request.op == static_cast<uint32_t>(shm::Op::kPutWeights) &&
                            slot->job->spec().IsFrozen(request.chunk);
        copies += is_put && slot->job->states->frozen(request.chunk).chunk == chunk.get() ? 1 : 0;
      }
    }
    TP_CHECK(chunk->holders == holders && holders > 0,
             "a frozen chunk is held by the jobs that list it");
    TP_CHECK(uploads && chunk->copies == copies, "an upload has a rank that uploads");
    TP_CHECK(chunk->sealed == (chunk->record->sealed.load() == kFrozenSealed),
             "a seal is in kept memory");
    if (!with_bytes || !chunk->sealed) continue;
    TP_CHECK(std::memcmp(chunk->data, SimJob::ContentOf(name.content).data(), name.bytes) == 0,
             "a frozen chunk is never written");
  }
}

void CheckIndex(const ServeWorld& world) {
  const IndexContents contents = ReadIndexOf(world);
  size_t open = 0;
  for (const Job* job : world.tables().AllJobs()) {
    if (!job->IsRecorded()) continue;
    ++open;
    const auto is_this = [&job](const IndexedJob& indexed) {
      return indexed.nonce == job->nonce && indexed.job == job->id;
    };
    const auto it = std::find_if(contents.jobs.begin(), contents.jobs.end(), is_this);
    TP_CHECK(
        it != contents.jobs.end() && it->records_offset == job->states->extents().front().offset,
        "an open job is in the index");
  }
  TP_CHECK(open + world.tables().withheld.slots.size() == contents.jobs.size(),
           "the index names open jobs only, and those that were given up under copies");
}

void CheckVersions(const Job& job, const SimJob& model) {
  if (!job.IsRecorded()) return;
  const Version sealed = job.states->sealed_version();
  TP_CHECK(sealed == model.sealed(), "the twin has followed");
  for (ChunkId id = 0; id < job.spec().chunks.size(); ++id) {
    const Chunk& chunk = job.states->chunk(id);
    TP_CHECK(VersionOf(*chunk.record) == chunk.version, "the table says what kept memory says");
    if (chunk.version == kNoVersion) continue;
    TP_CHECK(chunk.version == sealed || chunk.version + 1 == sealed,
             "a chunk is at most one step behind");
  }
}

void CheckPlanes(ServeWorld* world, const Job& job, const SimJob& model) {
  if (!job.IsRecorded()) return;
  const Version sealed = job.states->sealed_version();
  for (ChunkId id = 0; id < job.spec().chunks.size(); ++id) {
    const Chunk& chunk = job.states->chunk(id);
    if (chunk.spilled && chunk.version != kNoVersion) {
      CheckSpilled(world, job, model, id);
    } else if (chunk.version == kNoVersion) {
      CheckLoading(job, model, id);
    } else if (chunk.version == sealed) {
      CompareRange(chunk, model.twin().planes(id, 0), job.spec().optimizer.states,
                   {0, chunk.elements}, true);
    } else {
      CompareTiles(chunk, model, id, sealed);
    }
  }
}

std::vector<KeptFact> ReadKept(ServeWorld* world, bool with_lease,
                               std::span<const uint64_t> damaged) {
  std::vector<KeptFact> facts;
  for (const IndexedJob& indexed : ReadIndexOf(*world).jobs) {
    if (std::find(damaged.begin(), damaged.end(), indexed.nonce) != damaged.end()) continue;
    const auto bytes = world->pool().Look(indexed.records_offset, indexed.records_bytes);
    auto kept = ReadJobRecords(bytes, indexed);
    TP_CHECK(kept.ok(), kept.status().Line().c_str());
    const auto& record = *reinterpret_cast<const JobRecord*>(bytes.data());
    KeptFact fact{indexed.nonce, kept->sealed_version, false};
    bool loaded = true;
    const auto* chunks = reinterpret_cast<const ChunkRecord*>(bytes.data() + shm::kJobRecordBytes);
    for (uint32_t i = 0; i < record.chunk_count; ++i)
      loaded = loaded && VersionOf(chunks[i]) != kNoVersion;
    for (const RankRecord& rank : record.ranks)
      fact.must_survive = fact.must_survive || rank.nonce.load() != 0;
    const bool all_left = record.ranks_left_well.load() == RanksMask(kept->spec->world);
    fact.must_survive = fact.must_survive || (with_lease && loaded && !all_left);
    facts.push_back(fact);
  }
  return facts;
}

void CheckRecovered(const std::vector<KeptFact>& kept, const ServeWorld& world) {
  for (const KeptFact& fact : kept) {
    const std::vector<Job*> all = world.tables().AllJobs();
    const auto it = std::find_if(all.begin(), all.end(), [&fact](const Job* one) {
      return one->nonce == fact.nonce && one->IsRecorded();
    });
    const Job* job = it == all.end() ? nullptr : *it;
    TP_CHECK(job != nullptr || !fact.must_survive,
             "a job that a rank may come back to survives its server");
    TP_CHECK(job == nullptr || job->states->sealed_version() == fact.sealed,
             "the sealed version survives the server");
  }
  for (const Job* job : world.tables().AllJobs()) {
    const auto is_this = [&job](const KeptFact& fact) { return fact.nonce == job->nonce; };
    TP_CHECK(std::any_of(kept.begin(), kept.end(), is_this), "a recovered job was in the index");
  }
}

}  // namespace tidepool::memserver
