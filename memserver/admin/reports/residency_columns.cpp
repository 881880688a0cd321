#include "memserver/admin/reports/residency_columns.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace tidepool::memserver {
namespace {

constexpr std::string_view kExperts = ".experts.";
constexpr size_t kExpertDigits = 6;  // more are no number of an expert

bool IsNumber(std::string_view part) {
  return !part.empty() && part.find_first_not_of("0123456789") == part.npos;
}

// "transformer.h.3.attn.weight" belongs to layer "transformer.h.3". npos: no number.
size_t EndOfFirstNumber(std::string_view name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (IsNumber(name.substr(begin, end - begin))) return end;
    begin = end + 1;
  }
  return name.npos;
}

// "transformer.h.3.attn.weight" belongs to layer "transformer.h.3", "wte.weight" to "wte".
std::string_view LayerOf(std::string_view tensor) {
  const size_t end = EndOfFirstNumber(tensor);
  return tensor.substr(0, end != tensor.npos ? end : tensor.rfind('.'));
}

// Adds chunks without tensors: frozen ones, and those of a job whose tensors are unknown.
void AddNameless(const JobRow& job, const std::vector<bool>& named, std::vector<Column>* columns) {
  Column frozen{.name = "(frozen)"}, rest{.name = "(no tensor)"};
  for (ChunkId id = 0; id < job.chunks.size(); ++id) {
    if (named[id]) continue;
    const bool is_frozen = job.spec != nullptr && job.spec->IsFrozen(id);
    Column& column = is_frozen ? frozen : rest;
    column.chunks.push_back(id);
    column.bytes += job.chunks[id].elements * BytesOf(job.chunks[id].dtype);
  }

  for (Column* column : {&rest, &frozen}) {
    if (!column->chunks.empty()) columns->push_back(std::move(*column));
  }
}

// The name of the column to which a tensor belongs.
std::string ColumnNameOf(std::string_view tensor, ResidencyBy by) {
  if (by == ResidencyBy::kTensor) return std::string(tensor);
  const auto expert = by == ResidencyBy::kExpert ? ExpertOf(tensor) : std::nullopt;
  if (!expert) return std::string(LayerOf(tensor));
  return std::string(expert->layer) + " expert " + std::to_string(expert->number);
}

const std::vector<shm::ParameterSpec>& TensorsOf(const JobRow& job) {
  static const std::vector<shm::ParameterSpec> kUnknown;
  return job.spec == nullptr ? kUnknown : job.spec->parameters;
}

std::vector<Column> ColumnsByName(const JobRow& job, ResidencyBy by) {
  std::vector<Column> columns;
  std::vector<bool> named(job.chunks.size());
  std::unordered_map<std::string, size_t> places;
  const auto column_of = [&](std::string name) -> Column& {
    if (by == ResidencyBy::kTensor) return columns.emplace_back(Column{.name = std::move(name)});
    const auto [at, is_new] = places.try_emplace(name, columns.size());
    return is_new ? columns.emplace_back(Column{.name = std::move(name)}) : columns[at->second];
  };

  for (const shm::ParameterSpec& tensor : TensorsOf(job)) {
    Column& column = column_of(ColumnNameOf(tensor.name, by));
    if (column.chunks.empty() || column.chunks.back() != tensor.chunk)
      column.chunks.push_back(tensor.chunk);
    column.bytes += tensor.element_count * BytesOf(job.spec->DTypeOf(tensor.chunk));
    named[tensor.chunk] = true;
  }
  AddNameless(job, named, &columns);
  return columns;
}

Column WholeJob(const JobRow& job) {
  Column column{.name = job.name};
  for (ChunkId id = 0; id < job.chunks.size(); ++id) {
    column.chunks.push_back(id);
    column.bytes += job.chunks[id].elements * BytesOf(job.chunks[id].dtype);
  }
  return column;
}

}  // namespace

std::optional<ExpertName> ExpertOf(std::string_view tensor) {
  const size_t at = tensor.find(kExperts);
  if (at == tensor.npos || at == 0) return std::nullopt;
  const std::string_view rest = tensor.substr(at + kExperts.size());
  const std::string_view digits = rest.substr(0, rest.find('.'));
  if (!IsNumber(digits) || digits.size() > kExpertDigits) return std::nullopt;

  ExpertName expert;
  const std::string_view before = tensor.substr(0, at);
  expert.layer = before.substr(0, EndOfFirstNumber(before));
  for (const char digit : digits)
    expert.number = 10 * expert.number + static_cast<uint32_t>(digit - '0');
  return expert;
}

std::vector<Column> ColumnsOf(const JobRow& job, ResidencyBy by) {
  if (by == ResidencyBy::kChunk || job.chunks.empty()) return {};
  std::vector<Column> columns =
      by == ResidencyBy::kJob ? std::vector<Column>{WholeJob(job)} : ColumnsByName(job, by);
  for (Column& column : columns) {
    for (const ChunkId id : column.chunks)
      column.fetched_step = std::max(column.fetched_step, job.chunks[id].fetched_step);
  }
  return columns;
}

std::vector<ExpertRange> ExpertRangesOf(const JobRow& job) {
  std::vector<ExpertRange> ranges;
  if (job.chunks.empty()) return ranges;
  for (const shm::ParameterSpec& tensor : TensorsOf(job)) {
    const std::optional<ExpertName> expert = ExpertOf(tensor.name);
    if (!expert) continue;

    ExpertRange* const last = ranges.empty() ? nullptr : &ranges.back();
    const bool goes_on = last != nullptr && last->layer == expert->layer &&
                         expert->number - last->last <= 1 && tensor.chunk - last->last_chunk <= 1;
    if (goes_on) {
      last->last = expert->number;
      last->last_chunk = tensor.chunk;
    } else {
      ranges.push_back(
          {std::string(expert->layer), expert->number, expert->number, tensor.chunk, tensor.chunk});
    }
  }

  for (ExpertRange& range : ranges) {
    for (ChunkId id = range.first_chunk; id <= range.last_chunk; ++id) {
      const Version step = job.chunks[id].fetched_step;
      range.chunks_fetched += step > 0 && step >= job.version ? 1 : 0;
    }
  }
  return ranges;
}

}  // namespace tidepool::memserver
