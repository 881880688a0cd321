#include "trainer/data/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/system/whole_file.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kLlmcHeaderBytes = 256 * 4;

struct LlmcForm {
  uint32_t magic, version, id_bytes;
  const char* name;
};
constexpr LlmcForm kLlmcForms[] = {{20240520, 1, 2, "llm.c tokens (uint16, GPT-2)"},
                                   {20240801, 7, 4, "llm.c tokens (uint32, Llama 3)"}};

Status Bad(const std::string& path, const std::string& what) {
  return Status(ErrorId::kDataBad, "'" + path + "' " + what);
}

uint32_t Word(const uint8_t* bytes, int index) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word |= uint32_t{bytes[4 * index + i]} << (8 * i);
  return word;
}

// Checks that the sizes agree, and sets the fields given in the header.
Status ReadLlmcHeader(const LlmcForm& form, const uint8_t* header, uint64_t file_bytes,
                      TokenFile* file) {
  const uint32_t version = Word(header, 1), count = Word(header, 2);
  if (version != form.version) {
    return Bad(file->path, "has the magic number of " + std::string(form.name) + ", but version " +
                               std::to_string(version) + ", not " + std::to_string(form.version));
  }

  const uint64_t expected = kLlmcHeaderBytes + uint64_t{count} * form.id_bytes;
  if (file_bytes != expected) {
    return Bad(file->path, "promises " + std::to_string(count) + " tokens, " +
                               std::to_string(expected) + " bytes in all, but has " +
                               std::to_string(file_bytes) + " bytes")
        .Fix("write or download the file again");
  }

  file->header_bytes = kLlmcHeaderBytes;
  file->id_bytes = form.id_bytes;
  file->tokens = count;
  return {};
}

Status ReadHeaderless(uint64_t file_bytes, TokenFile* file) {
  if (file_bytes % 2 != 0) {
    return Bad(file->path, "has the odd size of " + std::to_string(file_bytes) +
                               " bytes, so it does not hold 16-bit token ids")
        .Why("a file named *.bin without an llm.c header is read as nanoGPT's tokens")
        .Fix("rename it if it is text");
  }
  file->header_bytes = 0;
  file->id_bytes = 2;
  file->tokens = file_bytes / 2;
  return {};
}

}  // namespace

Result<std::optional<OpenedTokenFile>> OpenTokenFile(const std::string& path, uint64_t vocab) {
  auto file = std::make_shared<TokenFile>();
  file->path = path;
  file->vocab = vocab;
  file->fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC));

  struct stat status {};
  uint8_t header[kLlmcHeaderBytes] = {};
  ssize_t got = -1;
  if (file->fd.valid() && fstat(file->fd.get(), &status) == 0)
    got = pread(file->fd.get(), header, sizeof(header), 0);
  if (got < 0)
    return Status(ErrorId::kFileUnreadable, "'" + path + "' cannot be read")
        .Why(std::strerror(errno));

  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  std::string form_name;
  for (const LlmcForm& form : kLlmcForms) {
    if (static_cast<uint64_t>(got) == kLlmcHeaderBytes && Word(header, 0) == form.magic) {
      TP_RETURN_IF_ERROR(ReadLlmcHeader(form, header, file_bytes, file.get()));
      form_name = form.name;
    }
  }

  if (form_name.empty()) {
    if (!path.ends_with(".bin")) return std::optional<OpenedTokenFile>();
    TP_RETURN_IF_ERROR(ReadHeaderless(file_bytes, file.get()));
    form_name = "nanoGPT tokens (uint16, no header: guessed from the name)";
  }
  if (file->tokens == 0) return Bad(path, "holds no token");
  return std::optional<OpenedTokenFile>(
      OpenedTokenFile{.file = std::move(file), .form = std::move(form_name)});
}

Status WriteTokenFile(const std::string& path, std::span<const uint32_t> ids, uint64_t vocab) {
  if (ids.size() > UINT32_MAX) {
    return Status(ErrorId::kUsageError, std::to_string(ids.size()) + " tokens are too many")
        .Where(path)
        .Why("the header of a token file counts in 32 bits")
        .Fix("divide the text into several files");
  }

  const LlmcForm& form = kLlmcForms[vocab > UINT16_MAX + 1 ? 1 : 0];
  std::vector<uint32_t> header(kLlmcHeaderBytes / sizeof(uint32_t));
  header[0] = form.magic;
  header[1] = form.version;
  header[2] = static_cast<uint32_t>(ids.size());

  const auto head = std::as_bytes(std::span(header));
  if (form.id_bytes == sizeof(uint32_t)) return WriteWholeFile(path, {head, std::as_bytes(ids)});
  const std::vector<uint16_t> narrow(ids.begin(), ids.end());
  return WriteWholeFile(path, {head, std::as_bytes(std::span(narrow))});
}

}  // namespace tidepool::trainer
