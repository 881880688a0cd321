// Writes the answer of /v1/residency.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "memserver/admin/reports/report.h"
#include "memserver/admin/reports/residency_columns.h"

namespace tidepool::memserver {
namespace {

// Letters by priority: a column shows the letter of its chunks that is leftmost here, because
// chunks in motion matter more than chunks at rest.
constexpr const char* kPriority = "AO><gGwWN_C.=-";
// The letter for an rCache that holds some of a column's chunks, but not all.
constexpr char kSomeHeld = 'c';

char LetterOnNvme(const ChunkRow& chunk) {
  if (chunk.weights_spilled) return chunk.in_window ? 'w' : 'W';
  return chunk.spilled ? 'N' : '-';
}

class Picture {
 public:
  Picture(const Snapshot& snapshot, ResidencyBy by) : snapshot_(snapshot), by_(by) {}

  void WriteJob(const JobRow& job) {
    columns_ = ColumnsOf(job, by_);
    json_.BeginObject()
        .Field("id", job.job)
        .Field("name", job.name)
        .Field("state", job.state)
        .Field("version", job.version);
    json_.Field("step_seconds", job.step_seconds)
        .Field("chunks", static_cast<uint64_t>(job.chunks.size()));

    uint64_t largest = 0;
    for (const ChunkRow& chunk : job.chunks)
      largest = std::max(largest, chunk.elements * BytesOf(chunk.dtype));
    json_.Field("chunk_bytes_max", largest);
    WriteStep(job.step);
    by_ == ResidencyBy::kChunk ? WriteExperts(job) : WriteColumns();
    json_.Key("rows").BeginArray();
    for (const SessionRow& session : job.sessions) WriteRcacheRow(job, session);
    json_.BeginObject()
        .Field("kind", "host_pool")
        .Field("bytes_used", job.pool_bytes)
        .Field("bytes_limit", snapshot_.pool_bytes);

    WriteLetters(job, [](const ChunkRow& chunk) { return LetterOf(chunk.state); });
    if (job.chunks_spilled > 0) {
      json_.BeginObject()
          .Field("kind", "nvme")
          .Field("bytes_used", job.nvme_bytes)
          .Field("bytes_limit", snapshot_.nvme.bytes);
      WriteLetters(job, LetterOnNvme);
    }

    if (job.chunks_on_gpu > 0) {
      uint64_t memory = 0;
      for (const GpuRow& gpu : snapshot_.gpus) memory += gpu.bytes;
      json_.BeginObject()
          .Field("kind", "gpu")
          .Field("bytes_used", job.gpu_bytes)
          .Field("bytes_limit", memory);
      WriteLetters(job, [](const ChunkRow& chunk) { return chunk.on_gpu ? 'U' : '-'; });
    }
    json_.EndArray().EndObject();
  }
  void WriteLegend() {
    json_.Key("legend").BeginObject().Field("C", "in rCache");
    if (by_ != ResidencyBy::kChunk) json_.Field(std::string(1, kSomeHeld), "some of it in rCache");
    json_.Field(">", "on its way in").Field("<", "gradient on its way out");
    for (const ChunkState state : kChunkStates) {
      if (state != ChunkState::kFrozen || snapshot_.frozen_chunks > 0)
        json_.Field(std::string(1, LetterOf(state)), NameOf(state));
    }

    if (snapshot_.nvme.bytes > 0) json_.Field("N", "states on NVMe").Field("-", "not there");
    const auto& jobs = snapshot_.jobs;
    if (std::any_of(jobs.begin(), jobs.end(),
                    [](const JobRow& job) { return job.weight_slots > 0; })) {
      json_.Field("W", "weights there too").Field("w", "weights there, and in the window");
    }
    const bool on_gpus = std::any_of(jobs.begin(), jobs.end(),
                                     [](const JobRow& job) { return job.chunks_on_gpu > 0; });
    if (on_gpus && snapshot_.nvme.bytes == 0) json_.Field("-", "not there");
    if (on_gpus) json_.Field("U", "states on a GPU");
    json_.EndObject();
  }
  JsonWriter& json() { return json_; }

 private:
  void WriteStep(const StepProgress& step) {
    json_.Key("step")
        .BeginObject()
        .Field("phase", step.phase)
        .Field("chunks_done", step.chunks_done);

    json_.Field("micro_batch", step.micro_batch)
        .Field("micro_batches", step.micro_batches)
        .EndObject();
    json_.Key("last_step")
        .BeginObject()
        .Field("fetches", step.fetches)
        .Field("fetches_waited", step.fetches_waited);
    json_.Field("bytes_fetched", step.bytes_fetched)
        .Field("fetch_wait_seconds", static_cast<double>(step.fetch_wait_ns) / kNsPerSecond)
        .EndObject();
  }
  void WriteColumns() {
    json_.Key("columns").BeginArray();
    for (const Column& column : columns_) {
      json_.BeginObject()
          .Field("name", column.name)
          .Field("chunks", static_cast<uint64_t>(column.chunks.size()));
      json_.Field("bytes", column.bytes);
      if (by_ == ResidencyBy::kExpert) json_.Field("fetched_step", column.fetched_step);
      json_.EndObject();
    }
    json_.EndArray();
  }
  void WriteExperts(const JobRow& job) {
    const std::vector<ExpertRange> ranges = ExpertRangesOf(job);
    if (ranges.empty()) return;
    json_.Key("experts").BeginArray();
    for (const ExpertRange& range : ranges) {
      json_.BeginObject().Field("layer", range.layer).Field("first_expert", range.first);
      json_.Field("last_expert", range.last).Field("first_chunk", range.first_chunk);
      json_.Field("last_chunk", range.last_chunk);
      json_.Field("chunks_fetched", range.chunks_fetched).EndObject();
    }
    json_.EndArray();
  }
  void WriteRcacheRow(const JobRow& job, const SessionRow& session) {
    const auto in = [&](uint64_t ranks) { return (ranks >> session.rank & 1) != 0; };

    uint64_t held = 0;
    for (const ChunkRow& chunk : job.chunks) held += in(chunk.ranks_cached) ? 1 : 0;
    json_.BeginObject().Field("kind", "rcache").Field("rank", session.rank);
    json_.Field("chunks_held", held).Field("bytes_limit", session.rcache_bytes);
    WriteLetters(job, [&](const ChunkRow& chunk) {
      return in(chunk.ranks_fetching)  ? '>'
             : in(chunk.ranks_sending) ? '<'
             : in(chunk.ranks_cached)  ? 'C'
                                       : '.';
    });
  }
  // The letter of a column, derived from those of its chunks.
  template <typename LetterOfChunk>
  char Folded(const JobRow& job, const Column& column, LetterOfChunk letter_of) const {
    char first = letter_of(job.chunks[column.chunks[0]]);
    bool is_mixed = false;
    for (const ChunkId id : column.chunks) {
      const char letter = letter_of(job.chunks[id]);
      is_mixed |= letter != first;
      if (std::strchr(kPriority, letter) < std::strchr(kPriority, first)) first = letter;
    }
    return is_mixed && first == 'C' ? kSomeHeld : first;
  }
  // [["C", 3], [".", 9]]: the columns' letters, run-length encoded; then the number of chunks per
  // letter. Ends the row.
  template <typename LetterOfChunk>
  void WriteLetters(const JobRow& job, LetterOfChunk letter_of) {
    std::string letters;
    for (const Column& column : columns_) letters += Folded(job, column, letter_of);
    if (by_ == ResidencyBy::kChunk)
      std::transform(job.chunks.begin(), job.chunks.end(), std::back_inserter(letters), letter_of);
    json_.Key("runs").BeginArray();
    for (size_t begin = 0; begin < letters.size();) {
      const size_t end = std::min(letters.find_first_not_of(letters[begin], begin), letters.size());
      json_.BeginArray().String(std::string(1, letters[begin])).Uint(end - begin).EndArray();
      begin = end;
    }

    std::array<uint64_t, 128> counts{};
    for (const ChunkRow& chunk : job.chunks) ++counts[static_cast<size_t>(letter_of(chunk))];
    json_.EndArray().Key("chunks").BeginObject();
    for (const char* letter = kPriority; *letter != '\0'; ++letter) {
      const uint64_t count = counts[static_cast<size_t>(*letter)];
      if (count > 0) json_.Field(std::string(1, *letter), count);
    }
    json_.EndObject().EndObject();
  }

  const Snapshot& snapshot_;
  const ResidencyBy by_;
  JsonWriter json_;
  std::vector<Column> columns_;  // of the job being written
};

}  // namespace

std::string ResidencyReport(const Snapshot& snapshot, const std::vector<const JobRow*>& jobs,
                            ResidencyBy by) {
  constexpr std::array<const char*, 5> kNames{"chunk", "layer", "expert", "tensor", "job"};
  Picture picture(snapshot, by);
  JsonWriter& json = picture.json();
  json.BeginObject().Field("by", kNames[static_cast<size_t>(by)]);
  json.Key("pool")
      .BeginObject()
      .Field("bytes", snapshot.pool_bytes)
      .Field("bytes_used", snapshot.pool_used)
      .EndObject();
  picture.WriteLegend();

  json.Key("jobs").BeginArray();
  for (const JobRow* job : jobs) picture.WriteJob(*job);
  return json.EndArray().EndObject().Take();
}

}  // namespace tidepool::memserver
