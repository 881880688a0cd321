// Fuzz target: the MANIFEST of a checkpoint that somebody else has written, and the plan by which a
// checkpoint is written.
#include <string>

#include "base/check.h"
#include "base/checkpoint/manifest.h"
#include "base/formats/crc32c.h"
#include "client/checkpoint/write_states.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool {
namespace {

using fuzz::FuzzInput;

constexpr const char* kKeys[] = {
    "version",    "optimizer_step", "data_cursor", "random_state", "scaler_steps",
    "loss_scale", "file",           "tensor",      "end",          "tidepool-checkpoint"};
constexpr const char* kNames[] = {kMasterFile, kMomentsFile, "..", "a/b", "", " ", "w.exp_avg"};

std::string Field(FuzzInput* input) {
  switch (input->Choice(4)) {
    case 0: return std::to_string(fuzz::OddNumber(input, 300));
    case 1: return "3f800000";
    case 2: return kNames[input->Choice(std::size(kNames))];
    default: return input->Text(12);
  }
}

// Lines that are right or nearly so, under a check that fits.
std::string NearlyRight(FuzzInput* input) {
  std::string text = "tidepool-checkpoint 1\nversion 300\n";
  for (uint32_t lines = input->Choice(8); lines > 0; --lines) {
    text += kKeys[input->Choice(std::size(kKeys))];
    for (uint32_t fields = input->Choice(6); fields > 0; --fields) text += " " + Field(input);
    text += "\n";
  }
  char check[16];
  std::snprintf(check, sizeof check, "end %08x\n", Crc32c(std::as_bytes(std::span(text))));
  return text + check;
}

void ReadIt(const std::string& text) {
  const Result<Manifest> read = ReadManifest(text);
  if (!read.ok()) {
    TP_CHECK(read.status().id() == ErrorId::kCheckpointBad && !read.status().where().empty(),
             "a bad manifest has the documented error, and names its line");
    return;
  }
  for (const ManifestFile& file : read.value().files) {
    TP_CHECK(file.name.find('/') == std::string::npos && !file.name.starts_with(".") &&
                 file.head <= file.bytes,
             "a file stays in its directory");
  }
  const Result<Manifest> again = ReadManifest(TextOf(read.value()));
  TP_CHECK(again.ok() && TextOf(again.value()) == TextOf(read.value()),
           "what is understood is written as it is read");
}

void ReadPlanIn(const std::string& text) {
  const Result<client::StatesPlan> read = client::ReadPlan(text);
  if (!read.ok()) {
    TP_CHECK(read.status().id() == ErrorId::kDataBad, "a bad plan has the documented error");
    return;
  }
  const Result<client::StatesPlan> again = client::ReadPlan(client::TextOf(read.value()));
  TP_CHECK(again.ok() && again.value().parameters.size() == read.value().parameters.size(),
           "what is understood is written as it is read");
}

void RunOne(FuzzInput* input) {
  if (input->OneIn(4)) {
    const auto bytes = input->Rest();
    const std::string rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return ReadPlanIn("tidepool-plan 1\n" + rest);
  }
  if (input->OneIn(2)) return ReadIt(NearlyRight(input));
  const auto bytes = input->Rest();
  ReadIt({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace
}  // namespace tidepool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::FuzzInput input(data, size);
  tidepool::RunOne(&input);
  return 0;
}
