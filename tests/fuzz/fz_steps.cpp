// Fuzz target: a folder of logged steps that somebody else has written: any bytes, and segments
// that are right or nearly so.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checkpoint/step_log.h"
#include "base/formats/crc32c.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool {
namespace {

using fuzz::FuzzInput;
namespace fs = std::filesystem;

constexpr uint64_t kBase = 3;
constexpr uint32_t kModel = 9;
const std::vector<uint64_t> kGradients{8, 0, 24};

// One folder for all runs, in memory where the machine has such a file system.
const std::string& Folder() {
  static const std::string folder = [] {
    std::string path = fs::exists("/dev/shm") ? "/dev/shm/fz-steps-XXXXXX" : "/tmp/fz-steps-XXXXXX";
    TP_CHECK(mkdtemp(path.data()) != nullptr, "a folder can be made");
    return path;
  }();
  // Behind the string, so that it runs before the string is gone.
  static const int removed = std::atexit([] { fs::remove_all(Folder()); });
  TP_CHECK(removed == 0, "the folder is removed at the end");
  return folder;
}

void Append(std::string* file, StepFrame frame, const std::string& payload, FuzzInput* input) {
  frame.bytes = payload.size() + (input->OneIn(64) ? input->Number<uint64_t>() : 0);
  frame.payload_crc = Crc32c(std::as_bytes(std::span(payload))) + (input->OneIn(32) ? 1 : 0);
  Close(&frame);
  if (input->OneIn(64)) frame.head_crc ^= 1;
  file->append(reinterpret_cast<const char*>(&frame), sizeof frame);
  file->append(payload);
  file->resize((file->size() + kStepFrameAlign - 1) / kStepFrameAlign * kStepFrameAlign);
}

// A segment of the run; mostly as a writer makes it.
std::string NearlyRight(uint64_t base, uint64_t run, FuzzInput* input) {
  std::string file;
  const uint64_t previous = input->Choice(3);
  Append(&file,
         {.kind = StepFrame::kBegin,
          .run = run,
          .version = base,
          .parameter = kModel + (input->OneIn(32) ? 1 : 0),
          .extra = previous},
         "", input);
  uint64_t version = base;
  for (uint32_t steps = input->Choice(4); steps > 0; --steps) {
    ++version;
    const bool skipped = input->OneIn(4);
    const uint32_t runs = skipped ? 0 : 1 + input->Choice(3);
    for (uint32_t i = 0; i < runs; ++i) {
      const bool whole = runs == 1 && !input->OneIn(8);
      Append(&file,
             {.kind = StepFrame::kGradients,
              .run = run,
              .version = version,
              .first = whole ? 0 : fuzz::OddNumber(input, 24),
              .parameter = whole ? 0 : input->Choice(4)},
             std::string(whole ? 32 : input->Choice(33), 'g'), input);
    }
    LoggedStep step{.version = version, .skipped = skipped ? 1U : 0U};
    if (input->OneIn(32)) step.version = fuzz::OddNumber(input, 8);
    Append(&file,
           {.kind = input->OneIn(32) ? input->Choice(6) : uint32_t{StepFrame::kStep},
            .run = run,
            .version = version,
            .extra = input->Choice(8)},
           std::string(reinterpret_cast<const char*>(&step), sizeof step), input);
  }
  if (input->OneIn(3)) file.resize(input->Choice(static_cast<uint32_t>(file.size()) + 1));
  return file;
}

void RunOne(FuzzInput* input) {
  for (const auto& entry : fs::directory_iterator(Folder())) fs::remove(entry.path());
  for (uint32_t segments = 1 + input->Choice(4); segments > 0; --segments) {
    const uint64_t base = kBase + input->Choice(4), run = 1 + input->Choice(2);
    std::string bytes;
    if (input->OneIn(8)) {
      bytes = input->Text(200);
    } else {
      bytes = NearlyRight(base, run, input);
    }
    std::ofstream(Folder() + "/" + SegmentName(base, run), std::ios::binary) << bytes;
  }

  Result<StepLog> log = StepLog::Open({.folder = Folder(),
                                       .run = 1,
                                       .base = kBase,
                                       .model = kModel,
                                       .gradient_bytes = kGradients,
                                       .last = kBase + 6,
                                       .checks_gradients = !input->OneIn(4)});
  if (!log.ok()) {
    TP_CHECK(log.status().id() == ErrorId::kCheckpointBad && !log.status().where().empty(),
             "a damaged log has the documented error, and names its place");
    return;
  }
  for (size_t i = 0; i < log->steps().size(); ++i) {
    TP_CHECK(log->steps()[i].version == kBase + 1 + i, "steps come in order, without gaps");
    for (uint32_t p = 0; p < kGradients.size() && log->steps()[i].skipped == 0; ++p) {
      std::vector<std::byte> bytes(kGradients[p]);
      TP_CHECK(log->Read(i, p, 0, bytes).ok(), "a whole step has all gradients");
    }
  }
}

}  // namespace
}  // namespace tidepool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::FuzzInput input(data, size);
  tidepool::RunOne(&input);
  return 0;
}
