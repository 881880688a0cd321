#include "bench/drive/drive_peer.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/units.h"
#include "bench/harness/row.h"

namespace tidepool::bench {
namespace {

// The number after the first `"key" :` after `section` in fio's report; nullopt if missing.
std::optional<double> NumberBehind(const std::string& text, const std::string& section,
                                   const std::string& key) {
  const size_t from = text.find(section);
  const size_t at = from == std::string::npos ? from : text.find("\"" + key + "\"", from);
  const size_t colon = at == std::string::npos ? at : text.find(':', at);
  if (colon == std::string::npos) return std::nullopt;
  return std::strtod(text.c_str() + colon + 1, nullptr);
}

// The output of a program; nullopt if it fails or is missing.
std::optional<std::string> OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 4096> piece{};
  while (const size_t got = fread(piece.data(), 1, piece.size(), pipe))
    text.append(piece.data(), got);
  return pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

// The speed in one section of the report.
std::optional<DriveSpeed> SpeedIn(const std::string& report, const std::string& direction,
                                  double cpu_share) {
  const std::string section = "\"" + direction + "\" : {";  // the options name it, too
  const auto rate = NumberBehind(report, section, "bw_bytes"),
             bytes = NumberBehind(report, section, "io_bytes");
  const auto runtime_ms = NumberBehind(report, section, "runtime");
  if (!rate || !bytes || !runtime_ms || *rate <= 0 || *bytes <= 0) return std::nullopt;
  const double cpu_seconds = cpu_share * *runtime_ms / 1000;
  return DriveSpeed{*rate / static_cast<double>(kGiB),
                    cpu_seconds / (*bytes / static_cast<double>(kGiB))};
}

std::string& ScratchPath() {
  static std::string path;
  return path;
}
void RemoveScratch() {
  std::error_code ignored;
  std::filesystem::remove_all(ScratchPath(), ignored);
}
// Cleans up also when the program is interrupted; only async-signal-safe calls.
void RemoveScratchAndEnd(int signal) {
  if (fork() == 0) execl("/bin/rm", "rm", "-rf", "--", ScratchPath().c_str(), nullptr);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

bool HasFio() {
  return OutputOf("fio --version 2>/dev/null").has_value();
}

std::optional<DriveSpeed> MeasureFio(const std::string& directory, const std::string& direction,
                                     const FioWay& way) {
  // Makes the C library use 2 MiB pages for fio's buffers, like memserver's staging.
  const auto report = OutputOf(
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=tidepool --filename='" + directory + "/" +
      way.file + "' --size=1g --rw=" + direction + " --bs=" + way.block +
      " --iodepth=" + std::to_string(way.depth) +
      " --ioengine=io_uring --direct=1 --time_based --runtime=1 --fixedbufs --registerfiles "
      "--output-format=json " +
      (way.checks ? "--verify=crc32c --do_verify=0 --verify_state_save=0 " : "") + "2>/dev/null");
  if (!report) return std::nullopt;

  const auto user = NumberBehind(*report, "{", "usr_cpu"),
             system = NumberBehind(*report, "{", "sys_cpu");
  if (!user || !system) return std::nullopt;
  const double cpu_share = (*user + *system) / 100;

  if (direction != "rw") return SpeedIn(*report, direction, cpu_share);
  const auto read = SpeedIn(*report, "read", cpu_share),
             write = SpeedIn(*report, "write", cpu_share);
  if (!read || !write) return std::nullopt;
  return DriveSpeed{read->gib_per_second + write->gib_per_second, 0};
}

FioWay BestFioWay(const std::string& directory, const std::string& direction, const char* file) {
  std::array<FioWay, 4> ways{{{"1m", 64}, {"1m", 16}, {"4m", 16}, {"256k", 64}}};
  SteadyClock clock;
  FioWay best = ways.front();
  double most = 0;

  for (FioWay& way : ways) {
    way.file = file;
    clock.SleepNs(kDrivePauseNs);
    const auto speed = MeasureFio(directory, direction, way);
    if (!speed || speed->gib_per_second <= most) continue;
    best = way;
    most = speed->gib_per_second;
  }
  return best;
}

std::string ScratchIn(const std::string& base) {
  std::string path = (std::filesystem::canonical(base) / "bench_drive_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) Die("no directory can be made in " + base);
  ScratchPath() = path;
  std::atexit(RemoveScratch);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) std::signal(signal, RemoveScratchAndEnd);
  return path;
}

}  // namespace tidepool::bench
