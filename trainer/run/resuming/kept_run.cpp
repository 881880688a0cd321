#include "trainer/run/resuming/kept_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "base/planted.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "client/admin/ask_job.h"

namespace tidepool::trainer {
namespace {

constexpr int64_t kAskNs = 2 * kNsPerSecond;  // for a memserver's answer

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this machine";
}

}  // namespace

Status KeptRun::Sealed(const std::string& socket_dir) {
  if (noted_ || !has_folder() || TP_PLANTED("trainer.run_not_noted")) return {};
  // Written atomically, whenever this process is killed.
  const std::string text = job_ + "\n" + HostName() + ":" + socket_dir + "\n",
                    made = path() + ".new";
  const UniqueFd file(open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const bool written = file.valid() && write(file.get(), text.data(), text.size()) ==
                                           static_cast<ssize_t>(text.size());
  if (!written || std::rename(made.c_str(), path().c_str()) != 0) {
    return Status(ErrorId::kFileWriteFailed,
                  "cannot write " + path() + ": " + std::strerror(errno));
  }
  noted_ = true;
  return {};
}

void KeptRun::Ended() {
  if (has_folder()) unlink(path().c_str());
  noted_ = false;
}

std::string KeptRun::WhoSaysSo(const std::string& socket_dir, Version sealed) const {
  if (sealed > 0) return "this run had sealed step " + std::to_string(sealed);
  std::string of_job, where;
  if (std::ifstream file(path()); has_folder() && std::getline(file, of_job) && of_job == job_) {
    std::getline(file, where);
    return path() + " says that job \"" + job_ +
           "\" had sealed steps and was not brought to its end" +
           (where.empty() ? "" : "; its memserver was " + where);
  }

  Result<client::JobWord> word = client::AskJob(socket_dir, job_, kAskNs);
  if (!word.ok() || !word->lost) return "";
  return "memserver had it at step " + std::to_string(word->lost->version) + " and lost it at " +
         FormatWhen(static_cast<int64_t>(word->lost->at), WallSeconds()) + ": " + word->lost->why;
}

Status KeptRun::MayBegin(const std::string& socket_dir, Version sealed) const {
  if (options_.server.standalone || options_.job.or_new ||
      TP_PLANTED("trainer.begins_anew_unasked"))
    return {};
  const std::string why = WhoSaysSo(socket_dir, sealed);
  if (why.empty()) return {};

  return Status(ErrorId::kStatesLost,
                "memserver holds nothing of job \"" + job_ + "\", which was to go on")
      .Where("memserver at " + socket_dir)
      .Why(why)
      .Fix("--resume auto --or-new begins it anew at step 1" +
           (options_.output.out_dir.empty() ? std::string()
                                            : "; metrics.jsonl is then kept under another name") +
           ". Where another memserver holds it, give its --socket-dir");
}

std::string KeptRun::Until(const std::string& socket_dir) const {
  Result<client::JobWord> word = client::AskJob(socket_dir, job_, kAskNs);
  if (!word.ok() || !word->job) return "kept for memserver's --lease";
  const double lease = word->job->lease_seconds;
  if (lease <= 0) return "not kept, because memserver's --lease is 0s";
  const int64_t now = WallSeconds();
  return "kept until " + FormatWhen(now + static_cast<int64_t>(lease), now);
}

}  // namespace tidepool::trainer
