#include "memserver/admin/read_queries.h"

#include <charconv>

namespace tidepool::memserver {
namespace {

constexpr uint64_t kRowsPerPage = 1'000, kRowsPerPageMax = 10'000;

// Finds a job by number, else by name.
const JobRow* FindJob(const Snapshot& snapshot, const std::string& who) {
  JobId id = 0;
  const auto [end, error] = std::from_chars(who.data(), who.data() + who.size(), id);
  const bool is_number = error == std::errc() && end == who.data() + who.size();
  for (const JobRow& job : snapshot.jobs) {
    if (is_number && job.job == id) return &job;
  }
  for (const JobRow& job : snapshot.jobs) {
    if (job.name == who) return &job;
  }
  return nullptr;
}

Status NoJob(const Snapshot& snapshot, const std::string& who) {
  std::string all;
  for (const JobRow& job : snapshot.jobs) all += (all.empty() ? "" : ", ") + job.name;
  return Status(ErrorId::kAdminNotFound, "no job has the number or name '" + who + "'")
      .Fix(all.empty() ? "no job is attached at the moment; start one with `trainer run`"
                       : "jobs there are: " + all);
}

Status ReadState(const RequestTarget& target, const ChunkState** state) {
  const std::string* name = target.Find("state");
  if (name == nullptr) return {};
  std::string all;
  for (const ChunkState& each : kChunkStates) {
    if (*name == NameOf(each)) *state = &each;
    all += (all.empty() ? "" : ", ") + std::string(NameOf(each));
  }
  if (*state != nullptr) return {};
  return Status(ErrorId::kAdminBadRequest, "no chunk state is called '" + *name + "'")
      .Fix("states are: " + all);
}

Status ReadTier(const RequestTarget& target, std::string* tier) {
  const std::string* name = target.Find("tier");
  if (name == nullptr) return {};
  *tier = *name;
  if (*name == "rcache" || *name == "host" || *name == "nvme" || *name == "gpu") return {};
  return Status(ErrorId::kAdminBadRequest, "no tier is called '" + *name + "'")
      .Fix("tiers are: rcache, host, nvme");
}

// Parses "JOB:ROW", where the previous page ended.
Status ReadCursor(const RequestTarget& target, JobId* from_job, auto* from_row) {
  const std::string* cursor = target.Find("cursor");
  if (cursor == nullptr) return {};
  const char* const end = cursor->data() + cursor->size();
  const auto job = std::from_chars(cursor->data(), end, *from_job);
  const bool parted = job.ec == std::errc() && job.ptr != end && *job.ptr == ':';
  const auto chunk = parted ? std::from_chars(job.ptr + 1, end, *from_row) : job;
  if (parted && chunk.ec == std::errc() && chunk.ptr == end) return {};
  return Status(ErrorId::kAdminBadRequest, "'" + *cursor + "' is no cursor")
      .Fix("give next_cursor of the page before");
}

}  // namespace

Result<const JobRow*> JobInPath(const Ask& ask) {
  const std::string& who = ask.target.path[2];
  const JobRow* job = FindJob(*ask.look.snapshot, who);
  if (job == nullptr) return NoJob(*ask.look.snapshot, who);
  return job;
}

Result<std::vector<const JobRow*>> ChosenJobs(const Ask& ask) {
  std::vector<const JobRow*> jobs;
  const std::string* who = ask.target.Find("job");
  if (who == nullptr) {
    for (const JobRow& job : ask.look.snapshot->jobs) jobs.push_back(&job);
    return jobs;
  }
  const JobRow* job = FindJob(*ask.look.snapshot, *who);
  if (job == nullptr) return NoJob(*ask.look.snapshot, *who);
  jobs.push_back(job);
  return jobs;
}

Result<ResidencyBy> ReadBy(const RequestTarget& target) {
  const std::string* name = target.Find("by");
  if (name == nullptr || *name == "chunk") return ResidencyBy::kChunk;
  if (*name == "layer") return ResidencyBy::kLayer;
  if (*name == "expert") return ResidencyBy::kExpert;
  if (*name == "tensor") return ResidencyBy::kTensor;
  if (*name == "job") return ResidencyBy::kJob;
  return Status(ErrorId::kAdminBadRequest, "there is no residency by '" + *name + "'")
      .Fix("give chunk, layer, expert, tensor or job");
}

Result<ChunkPage> ReadPage(const Ask& ask) {
  ChunkPage page;
  TP_ASSIGN_OR_RETURN(page.jobs, ChosenJobs(ask));
  TP_RETURN_IF_ERROR(ReadState(ask.target, &page.state));
  TP_RETURN_IF_ERROR(ReadTier(ask.target, &page.tier));
  TP_RETURN_IF_ERROR(ReadCursor(ask.target, &page.from_job, &page.from_chunk));
  TP_ASSIGN_OR_RETURN(page.limit,
                      NumberParameter(ask.target, "limit", kRowsPerPage, kRowsPerPageMax));
  if (page.limit == 0) return Status(ErrorId::kAdminBadRequest, "a page of 0 chunks was asked for");
  return page;
}

Result<TensorPage> ReadTensorPage(const Ask& ask) {
  TensorPage page;
  TP_ASSIGN_OR_RETURN(page.jobs, ChosenJobs(ask));
  TP_RETURN_IF_ERROR(ReadCursor(ask.target, &page.from_job, &page.from_tensor));
  if (const std::string* name = ask.target.Find("name")) page.name = *name;
  if (ask.target.Find("chunk") != nullptr) {
    TP_ASSIGN_OR_RETURN(const uint64_t chunk, NumberParameter(ask.target, "chunk", 0, UINT32_MAX));
    page.chunk = static_cast<ChunkId>(chunk);
  }

  TP_ASSIGN_OR_RETURN(page.limit,
                      NumberParameter(ask.target, "limit", kRowsPerPage, kRowsPerPageMax));
  if (page.limit == 0)
    return Status(ErrorId::kAdminBadRequest, "a page of 0 tensors was asked for");
  return page;
}

Result<std::string> ChunkInPath(const Ask& ask) {
  TP_ASSIGN_OR_RETURN(const std::vector<const JobRow*> jobs, ChosenJobs(ask));
  if (jobs.size() != 1) {
    return Status(ErrorId::kAdminBadRequest, "the parameter job is missing, and " +
                                                 std::to_string(jobs.size()) + " jobs are there");
  }

  const std::string& text = ask.target.path[2];
  ChunkId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  const size_t count = jobs[0]->chunks.size();
  if (is_number && id < count) return ChunkReport(*jobs[0], id);
  return Status(ErrorId::kAdminNotFound, "job " + jobs[0]->name + " has no chunk '" + text + "'")
      .Fix("its chunks are 0 to " + std::to_string(count - 1));
}

}  // namespace tidepool::memserver
