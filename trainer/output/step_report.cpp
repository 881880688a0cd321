#include "trainer/output/step_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/text/json_writer.h"
#include "base/log.h"
#include "base/planted.h"
#include "base/units.h"
#include "trainer/output/earlier_metrics.h"
#include "trainer/output/reported_lines.h"

namespace tidepool::trainer {
namespace {

std::string Number(const char* format, double value) {
  std::array<char, 48> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

Status WriteAll(int fd, const std::string& text, const char* what) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return Status(ErrorId::kFileWriteFailed,
                    std::string("cannot write ") + what + ": " + std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  return {};
}

constexpr const char* kNotedFile = "metrics.noted";
constexpr size_t kNoteBytes = 20 + 3 * 25 + 22;

// Reads `fd`, at most one byte more than a note has.
std::string ReadNote(int fd) {
  std::array<char, kNoteBytes + 1> note{};
  const ssize_t n = pread(fd, note.data(), note.size(), 0);
  return n > 0 ? std::string(note.data(), static_cast<size_t>(n)) : std::string();
}

// The step in `note` if it is `sealed`.
std::optional<StepReport> NotedStep(uint64_t sealed, const std::string& note) {
  StepReport report;
  unsigned long long step = 0, tokens = 0;
  const int read = std::sscanf(note.c_str(), "%llu %la %la %la %llu", &step, &report.loss,
                               &report.learning_rate, &report.loss_scale, &tokens);
  if (read != 5 || note.size() != kNoteBytes || step != sealed) return std::nullopt;
  report.step = step;
  report.tokens = tokens;
  report.recovered = true;
  report.grad_norm = std::numeric_limits<double>::quiet_NaN();
  return report;
}

void WriteTraffic(const char* key, const GroupTraffic& bytes, JsonWriter* json) {
  json->Key(key)
      .BeginObject()
      .Field("fetched", bytes.fetched)
      .Field("handed_in", bytes.handed_in)
      .Field("gathered", bytes.gathered);
  json->Field("scattered", bytes.scattered).Field("reduced", bytes.reduced).EndObject();
}

// One object per data group: bytes by kind, and the plan's.
void WriteGroups(const StepReport& report, JsonWriter* json) {
  json->Key("groups").BeginArray();
  for (size_t group = 0; group < report.groups.size(); ++group) {
    json->BeginObject();
    WriteTraffic("bytes", report.groups[group], json);
    if (group < report.groups_theory.size())
      WriteTraffic("theory", report.groups_theory[group], json);
    json->EndObject();
  }
  json->EndArray();
}

// What of a line a terminal shows in one row: only a row can be written over.
std::string InOneRow(std::string line, int terminal) {
  winsize size{};
  if (ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return line;
  if (line.size() >= size.ws_col) line.resize(size.ws_col - 1U);
  return line;
}

}  // namespace

std::string ProgressLine(const StepReport& report) {
  if (report.step == 0)
    return "before training: held-out loss " +
           Number("%.4f", report.held_out_loss.value_or(report.loss));

  std::string line = "step " + std::to_string(report.step) + "/" + std::to_string(report.steps) +
                     "  loss " + Number("%.4f", report.loss);
  if (report.held_out_loss) line += "  held-out " + Number("%.4f", *report.held_out_loss);
  if (report.skipped)
    line += "  SKIPPED (overflow, loss scale " + Number("%.0f", report.loss_scale) + ")";
  if (report.durable == false) line += "  (not on the drive yet)";
  if (report.recovered) return line + "  (sealed by the process before)";

  line += "  " + Number("%.0f", report.tokens_per_second()) + " tok/s  " +
          FormatDuration(report.seconds) + " a step, waits " +
          Number("%.0f %%", 100 * report.waiting_share());
  if (report.step < report.steps) line += "  ETA " + FormatDuration(report.eta_seconds);
  line += "  hit " + Number("%.0f %%", 100 * report.hit_rate());
  if (report.ahead > 0) line += ", ahead " + Number("%.0f %%", 100 * report.ahead_rate());
  line += "  in " + FormatBytes(report.bytes_h2d) + "  out " + FormatBytes(report.bytes_d2h);
  return line;
}

std::string MetricsLine(const StepReport& r) {
  JsonWriter json;
  json.BeginObject().Field("step", r.step).Field("loss", r.loss);
  if (r.held_out_loss) json.Field("val_loss", *r.held_out_loss);

  json.Field("grad_norm", r.grad_norm)
      .Field("learning_rate", r.learning_rate)
      .Field("loss_scale", r.loss_scale)
      .Field("skipped", r.skipped);
  if (r.durable) json.Field("durable", *r.durable);

  if (r.recovered)
    return json.Field("tokens", r.tokens).Field("recovered", true).EndObject().Take();
  json.Field("tokens", r.tokens)
      .Field("seconds", r.seconds)
      .Field("tokens_per_s", r.tokens_per_second());
  json.Field("hits", r.hits)
      .Field("ahead", r.ahead)
      .Field("misses", r.misses)
      .Field("hit_rate", r.hit_rate())
      .Field("evictions", r.evictions)
      .Field("evictions_unforeseen", r.evictions_unforeseen);

  json.Field("prefetches", r.prefetches)
      .Field("prefetches_late", r.prefetches_late)
      .Field("waited_s", r.waited_seconds);
  json.Field("cpus_shared", r.cpus_shared);
  if (r.memory_most > 0) json.Field("memory_most", r.memory_most);
  json.Field("bytes_h2d", r.bytes_h2d).Field("bytes_d2h", r.bytes_d2h);
  json.Field("bytes_h2d_theory", r.bytes_h2d_theory).Field("bytes_d2h_theory", r.bytes_d2h_theory);
  if (r.bytes_boundary > 0) json.Field("bytes_boundary", r.bytes_boundary);

  if (r.bytes_linked_theory > 0) {
    json.Field("bytes_linked", r.bytes_linked).Field("bytes_linked_theory", r.bytes_linked_theory);
  }
  if (!r.groups.empty()) WriteGroups(r, &json);
  return json.EndObject().Take();
}

Result<ReportWriter> ReportWriter::Open(ReportTask task) {
  ReportWriter writer;
  writer.task_ = std::move(task);
  writer.task_.every = std::max<uint64_t>(1, writer.task_.every);
  writer.terminal_ = isatty(STDERR_FILENO) != 0;
  if (!writer.task_.directory.empty()) TP_RETURN_IF_ERROR(writer.OpenFiles());
  return writer;
}

bool ReportWriter::IsUnreported(const std::string& directory, uint64_t sealed) {
  const UniqueFd noted(open((directory + "/" + kNotedFile).c_str(), O_RDONLY | O_CLOEXEC));
  return noted.valid() && NotedStep(sealed, ReadNote(noted.get())).has_value();
}

Status ReportWriter::OpenFiles() {
  const std::string& directory = task_.directory;
  const uint64_t sealed = task_.sealed;
  mkdir(directory.c_str(), 0755);
  const std::string path = directory + "/metrics.jsonl";
  TP_ASSIGN_OR_RETURN(const std::string aside, SetAsideEarlier(directory, sealed));
  if (!aside.empty())
    LogWarn("metrics.jsonl of an earlier run is kept under another name",
            {{"directory", directory}, {"name", aside}});

  auto files = std::make_shared<Files>();
  files->noted_path = directory + "/" + kNotedFile;
  files->metrics = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!files->metrics.valid())
    return Status(ErrorId::kFileWriteFailed, "cannot create " + path + ": " + std::strerror(errno));

  ReportedLines kept;
  if (sealed > 0) {
    Result<ReportedLines> found = FindReportedLines(files->metrics.get(), sealed);
    if (!found.ok())
      return Status(ErrorId::kFileWriteFailed,
                    "cannot go on with " + path + ": " + found.status().what());
    kept = *found;
  }
  // A device cannot be truncated.
  if (ftruncate(files->metrics.get(), static_cast<off_t>(kept.bytes)) != 0 && errno != EINVAL) {
    return Status(ErrorId::kFileWriteFailed,
                  "cannot set the length of " + path + ": " + std::strerror(errno));
  }

  files->noted = UniqueFd(open(files->noted_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!files->noted.valid())
    return Status(ErrorId::kFileWriteFailed,
                  "cannot create " + files->noted_path + ": " + std::strerror(errno));

  if (kept.last < sealed) unreported_ = NotedStep(sealed, ReadNote(files->noted.get()));
  const uint64_t known_to = unreported_ ? sealed - 1 : sealed;
  if (kept.last < known_to)
    LogWarn("metrics.jsonl has no lines for some sealed steps",
            {{"from", kept.last + 1}, {"to", known_to}});

  TP_ASSIGN_OR_RETURN(files->events, EventFile::Create(directory, "tidepool"));
  files_ = std::move(files);
  lane_ = std::make_unique<WriterLane>(task_.waits.queue_max, task_.clock);
  return {};
}

Status ReportWriter::Files::WriteNote(const StepReport& report) {
  // One write of fixed length; the numbers read back with the same bits.
  std::array<char, kNoteBytes + 1> note{};
  std::snprintf(note.data(), note.size(), "%20llu %24a %24a %24a %20llu\n",
                static_cast<unsigned long long>(report.step), report.loss, report.learning_rate,
                report.loss_scale, static_cast<unsigned long long>(report.tokens));
  if (pwrite(noted.get(), note.data(), kNoteBytes, 0) == static_cast<ssize_t>(kNoteBytes))
    return {};
  return Status(ErrorId::kFileWriteFailed,
                "cannot write " + noted_path + ": " + std::strerror(errno));
}

Status ReportWriter::Files::WriteReport(const StepReport& report) {
  TP_RETURN_IF_ERROR(WriteAll(metrics.get(), MetricsLine(report) + "\n", "metrics.jsonl"));
  return events ? WriteEvents(report) : Status();
}

// Waits for the write while the file system responds, so that a sealed step has its note by then.
Status ReportWriter::Hand(WriterLane::Job job) {
  const bool is_behind = !lane_->idle();
  if (!lane_->Push(std::move(job))) {
    if (TP_PLANTED("report.lost_silently")) return {};
    if (std::has_single_bit(++dropped_)) {
      LogError("reports are lost: the file system stands still",
               {{"directory", task_.directory}, {"writes_lost", dropped_}});
    }
    return {};
  }

  if (!is_behind && !lane_->AwaitIdle(task_.waits.step_ns)) {
    LogWarn("the file system stands still; the run goes on, and reports are written later",
            {{"directory", task_.directory}});
  }
  return lane_->failure();
}

Status ReportWriter::Note(const StepReport& report) {
  if (files_ == nullptr) return {};
  return Hand([files = files_, report] { return files->WriteNote(report); });
}

Status ReportWriter::Files::WriteEvents(const StepReport& report) {
  const auto scalar = [&](const char* tag, double value) {
    return events->Scalar(tag, report.step, static_cast<float>(value));
  };

  TP_RETURN_IF_ERROR(scalar("loss/train", report.loss));
  if (report.held_out_loss) TP_RETURN_IF_ERROR(scalar("loss/held_out", *report.held_out_loss));
  if (report.recovered) return scalar("optimizer/learning_rate", report.learning_rate);

  TP_RETURN_IF_ERROR(scalar("optimizer/grad_norm", report.grad_norm));
  TP_RETURN_IF_ERROR(scalar("optimizer/learning_rate", report.learning_rate));
  TP_RETURN_IF_ERROR(scalar("speed/tokens_per_s", report.tokens_per_second()));
  TP_RETURN_IF_ERROR(scalar("rcache/hit_rate", report.hit_rate()));
  TP_RETURN_IF_ERROR(scalar("rcache/bytes_h2d", static_cast<double>(report.bytes_h2d)));
  return scalar("rcache/bytes_d2h", static_cast<double>(report.bytes_d2h));
}

Status ReportWriter::Write(const StepReport& report) {
  if (files_ != nullptr)
    TP_RETURN_IF_ERROR(Hand([files = files_, report] { return files->WriteReport(report); }));
  if (task_.quiet) return {};

  const bool due = report.step % task_.every == 0 || report.recovered ||
                   report.step == report.steps || report.held_out_loss || report.skipped;
  if (terminal_) {
    line_open_ = true;
    return WriteAll(
        STDERR_FILENO,
        "\r\033[K" + InOneRow(ProgressLine(report), STDERR_FILENO) + (report.skipped ? "\n" : ""),
        "the terminal");
  }
  return due ? WriteAll(STDERR_FILENO, ProgressLine(report) + "\n", "stderr") : Status();
}

void ReportWriter::EndLine() {
  if (line_open_) [[maybe_unused]]
    const auto n = write(STDERR_FILENO, "\n", 1);
  line_open_ = false;
}

void ReportWriter::Finish() {
  EndLine();
  if (files_ == nullptr) return;
  const auto forget = [files = files_] {
    unlink(files->noted_path.c_str());
    return Status();
  };
  if (lane_->Push(forget) && lane_->AwaitIdle(task_.waits.end_ns)) return;
  LogError("the last reports are not written: the file system stands still",
           {{"directory", task_.directory}});
}

}  // namespace tidepool::trainer
