// Fuzz target: files of weights that somebody else has written (attack A16 of the reliability
// notes): whole files, header texts, and headers made of parts that are nearly right.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/formats/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

namespace tidepool {
namespace {

using fuzz::FuzzInput;

void CheckInvariants(const SafetensorsHeader& header, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    TP_CHECK(entry.begin == at && entry.end >= at && entry.end <= data_bytes,
             "tensors cover the data in order");
    unsigned __int128 bytes = SafetensorsElementBytes(entry.dtype);
    TP_CHECK(bytes > 0, "a tensor's kind of numbers is known");
    // 128 bits hold it: a product that overflowed 64 would be no tensor's size.
    for (const uint64_t dim : entry.shape) bytes *= dim;
    TP_CHECK(bytes == entry.end - entry.begin, "a tensor has the bytes of its shape");
    TP_CHECK(entry.name != "__metadata__" && entry.name.size() <= kSafetensorsTextMax,
             "a tensor's name is one");
    at = entry.end;
  }
  TP_CHECK(at == data_bytes, "tensors cover all of the data");
}

// What was accepted is written again, and read as the same.
void CheckRoundTrip(const SafetensorsHeader& header, uint64_t data_bytes) {
  SafetensorsHeader copy = header;
  const auto text = EncodeSafetensorsHeader(&copy);
  TP_CHECK(text.ok(), "what was read can be written");
  const auto again = DecodeSafetensorsHeader(
      std::string_view(text.value()).substr(kSafetensorsPrefixBytes), data_bytes);
  TP_CHECK(again.ok() && again.value().metadata == header.metadata, "what was written can be read");
  TP_CHECK(again.value().tensors.size() == header.tensors.size(), "no tensor is lost");
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const SafetensorsEntry &one = again.value().tensors[i], &other = header.tensors[i];
    const bool same =
        one.name == other.name && one.dtype == other.dtype && one.shape == other.shape;
    TP_CHECK(same && one.begin == other.begin && one.end == other.end, "a tensor is what it was");
  }
}

void Check(const Result<SafetensorsHeader>& header, uint64_t data_bytes) {
  if (!header.ok()) {
    TP_CHECK(header.status().id() == ErrorId::kSafetensorsBad && !header.status().Line().empty(),
             "a bad file has the documented error");
    return;
  }
  CheckInvariants(header.value(), data_bytes);
  CheckRoundTrip(header.value(), data_bytes);
}

void FuzzFile(std::span<const std::byte> file) {
  uint64_t data_begin = 0;
  const auto header = DecodeSafetensors(file, &data_begin);
  Check(header, header.ok() ? file.size() - data_begin : 0);
}

void FuzzText(FuzzInput* input) {
  const uint64_t data_bytes = input->Number<uint16_t>();
  const auto text = input->Rest();
  Check(DecodeSafetensorsHeader({reinterpret_cast<const char*>(text.data()), text.size()},
                                data_bytes),
        data_bytes);
}

std::string DimsOf(FuzzInput* input, uint64_t* elements) {
  std::string text;
  for (uint32_t i = input->Choice(4); i > 0; --i) {
    const uint64_t dim = input->OneIn(4) ? fuzz::OddNumber(input, 8) : input->Choice(9);
    *elements *= dim;  // it may overflow: the reader must notice
    text += (text.empty() ? "" : ",") + std::to_string(dim);
  }
  return text;
}

// Tensors one behind the other, some of them disturbed.
void FuzzParts(FuzzInput* input) {
  constexpr std::array<const char*, 8> kKinds{"F32", "BF16", "F16",     "I64",
                                              "U8",  "BOOL", "F8_E4M3", "F33"};
  std::string text = "{";
  uint64_t at = 0;
  if (input->OneIn(2)) text += R"("__metadata__":{"format":"pt"},)";
  for (uint32_t i = input->Choice(5); i > 0; --i) {
    const char* kind = kKinds[input->Choice(kKinds.size())];
    uint64_t elements = 1;
    const std::string dims = DimsOf(input, &elements);
    uint64_t begin = at, end = begin + elements * SafetensorsElementBytes(kind);
    if (input->OneIn(8)) begin = fuzz::OddNumber(input, begin);
    if (input->OneIn(8)) end = fuzz::OddNumber(input, end);
    text += "\"" + std::string(1, static_cast<char>('a' + input->Choice(6))) + R"(":{"dtype":")" +
            kind + R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
            std::to_string(end) + "]}" + (i > 1 ? "," : "");
    at = end;
  }
  text += "}";
  fuzz::Disturb(input, input->OneIn(4) ? 1 + input->Choice(3) : 0,
                std::as_writable_bytes(std::span(text)));
  const uint64_t data_bytes = input->OneIn(8) ? fuzz::OddNumber(input, at) : at;
  Check(DecodeSafetensorsHeader(text, data_bytes), data_bytes);
}

}  // namespace
}  // namespace tidepool

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::fuzz::FuzzInput input(data, size);
  switch (input.Choice(3)) {
    case 0: tidepool::FuzzFile(input.Rest()); break;
    case 1: tidepool::FuzzText(&input); break;
    default: tidepool::FuzzParts(&input);
  }
  return 0;
}
