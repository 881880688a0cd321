// Fuzz target: files of token ids that somebody else has written, or changes while they are read
// (attack A17 of the reliability notes).
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/fuzz_input.h"
#include "trainer/data/token_file.h"

namespace tidepool::trainer {
namespace {

using fuzz::FuzzInput;

constexpr uint64_t kVocabularies[] = {1, 256, 50'257, uint64_t{1} << 32};

// A file without a place on a disk, and a name for it that ends as those of nanoGPT do. One for the
// whole process.
class TokensOnPaper {
 public:
  TokensOnPaper() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    std::string pattern = "/tmp/tidepool-fuzz-XXXXXX";
    TP_CHECK(fd_.valid() && mkdtemp(pattern.data()) != nullptr, "room for a file");
    folder_ = pattern;
    TP_CHECK(symlink(plain().c_str(), named().c_str()) == 0, "room for a link");
  }
  ~TokensOnPaper() {
    unlink(named().c_str());
    rmdir(folder_.c_str());
  }
  TokensOnPaper(const TokensOnPaper&) = delete;
  TokensOnPaper& operator=(const TokensOnPaper&) = delete;
  std::string plain() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  std::string named() const { return folder_ + "/tokens.bin"; }
  void Write(std::span<const std::byte> bytes) {
    Cut(0);
    TP_CHECK(pwrite(fd_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             "room for the bytes");
  }
  void Cut(uint64_t bytes) {
    TP_CHECK(ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0, "a file can be cut");
  }

 private:
  const UniqueFd fd_;
  std::string folder_;
};

void Append(uint32_t word, std::vector<std::byte>* file) {
  for (int i = 0; i < 4; ++i) file->push_back(static_cast<std::byte>(word >> (8 * i)));
}

// An llm.c file whose header is right or nearly so, and some tokens.
std::vector<std::byte> LlmcFile(FuzzInput* input) {
  const bool is_wide = input->OneIn(2);
  const uint32_t tokens = input->Choice(40);
  std::array<uint32_t, 3> words{is_wide ? 20240801u : 20240520u, is_wide ? 7u : 1u, tokens};
  if (input->OneIn(4))
    words[input->Choice(3)] = static_cast<uint32_t>(fuzz::OddNumber(input, tokens));
  std::vector<std::byte> file;
  for (const uint32_t word : words) Append(word, &file);
  file.resize(1024);
  const auto ids = input->Bytes(uint64_t{tokens} * (is_wide ? 4 : 2));
  file.insert(file.end(), ids.begin(), ids.end());
  if (!input->OneIn(4)) file.resize(1024 + uint64_t{tokens} * (is_wide ? 4 : 2));
  return file;
}

void Read(FuzzInput* input, TokensOnPaper* paper, const OpenedTokenFile& opened, uint64_t vocab) {
  const TokenSource whole(opened.file);
  TP_CHECK(whole.size() > 0, "a token file holds a token");
  for (uint32_t reads = 1 + input->Choice(4); reads > 0; --reads) {
    if (input->OneIn(4)) paper->Cut(input->Choice(1200));  // by whoever may write to it
    const uint64_t begin = input->Number<uint32_t>() % whole.size();
    const TokenSource part = whole.Part(begin, whole.size() - begin);
    std::vector<int64_t> out(1 + input->Choice(64) % part.size(), -1);
    const Status read = part.Read(0, out);
    if (!read.ok()) {
      TP_CHECK(read.id() == ErrorId::kFileUnreadable || read.id() == ErrorId::kDataBad,
               "a bad file has one of the documented errors");
      continue;
    }
    for (const int64_t id : out)
      TP_CHECK(id >= 0 && static_cast<uint64_t>(id) < vocab, "an id is of the vocabulary");
  }
}

void RunOne(FuzzInput* input, TokensOnPaper* paper) {
  const uint64_t vocab = kVocabularies[input->Choice(4)];
  const bool named = input->OneIn(2);
  std::vector<std::byte> file;
  if (input->OneIn(2)) {
    file = LlmcFile(input);
  } else {
    const auto bytes = input->Bytes(input->Byte());
    file.assign(bytes.begin(), bytes.end());
  }
  paper->Write(file);
  const auto opened = OpenTokenFile(named ? paper->named() : paper->plain(), vocab);
  if (!opened.ok()) {
    TP_CHECK(opened.status().id() == ErrorId::kDataBad && !opened.status().Line().empty(),
             "a bad file has the documented error");
    return;
  }
  TP_CHECK(opened.value().has_value() || !named, "what is named .bin is tokens");
  if (opened.value().has_value()) Read(input, paper, *opened.value(), vocab);
}

}  // namespace
}  // namespace tidepool::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tidepool::trainer::TokensOnPaper paper;
  tidepool::fuzz::FuzzInput input(data, size);
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::trainer::RunOne(&input, &paper);
  watch.CheckSame();
  return 0;
}
