#include "trainer/inputs/weights_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/dtype.h"
#include "base/units.h"
#include "base/system/whole_file.h"
#include "optim/kernels/convert_scalar.h"

namespace tidepool::trainer {
namespace {

constexpr uint64_t kHashPieceBytes = 4 * kMiB;
constexpr uint64_t kPieceElements = kMiB;  // 16-bit elements, read before they are widened

// The dtype that Read widens; nullopt for one that it does not read.
std::optional<DType> TypeOf(const SafetensorsEntry& tensor) {
  if (tensor.dtype == "F32") return DType::kF32;
  if (tensor.dtype == "BF16") return DType::kBF16;
  if (tensor.dtype == "F16") return DType::kF16;
  return std::nullopt;
}

std::string ShapeText(const std::vector<uint64_t>& dims) {
  std::string text = "[";
  for (const uint64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

bool IsDirectory(const std::string& path) {
  struct stat seen {};
  return stat(path.c_str(), &seen) == 0 && S_ISDIR(seen.st_mode);
}

}  // namespace

std::string DirectoryOfWeights(const std::string& path) {
  if (IsDirectory(path)) return path;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string WholeModelAt(const std::string& path) {
  return IsDirectory(path) ? path + "/" + kWeightsFile : path;
}

Result<WeightsFile> WeightsFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat seen {};
  if (!fd.valid() || fstat(fd.get(), &seen) != 0 || !S_ISREG(seen.st_mode)) {
    return Status(ErrorId::kFileUnreadable, "cannot read " + path)
        .Where(path)
        .Why(fd.valid() ? "it is no file" : std::strerror(errno))
        .Fix("give what `trainer run --save DIR` wrote");
  }

  WeightsFile file(path, std::move(fd), static_cast<uint64_t>(seen.st_size));
  const Status read = file.ReadHeader();
  if (!read.ok())
    return Status(read).Where(path).Fix(
        "save the weights again: the file is cut off, or no safetensors file");
  return file;
}

Status WeightsFile::ReadHeader() {
  std::array<std::byte, kSafetensorsPrefixBytes> prefix{};
  TP_RETURN_IF_ERROR(ReadBytes(0, prefix.data(), prefix.size()));
  TP_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderLength(prefix, bytes_));
  std::string text(length, '\0');
  TP_RETURN_IF_ERROR(ReadBytes(kSafetensorsPrefixBytes, text.data(), length));
  data_begin_ = kSafetensorsPrefixBytes + length;
  TP_ASSIGN_OR_RETURN(header_, DecodeSafetensorsHeader(text, bytes_ - data_begin_));
  return {};
}

Status WeightsFile::ReadBytes(uint64_t offset, void* out, uint64_t bytes) const {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = pread(fd_.get(), static_cast<char*>(out) + done, bytes - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return Status(ErrorId::kSafetensorsBad,
                    path_ + " ends or fails at byte " + std::to_string(offset + done))
          .Where(path_)
          .Why(n < 0 ? std::strerror(errno)
                     : "it became shorter while it was read, or was cut off");
    }

    done += static_cast<uint64_t>(n);
  }
  return {};
}

std::string WeightsFile::Metadata(const std::string& key) const {
  const auto found = std::find_if(header_.metadata.begin(), header_.metadata.end(),
                                  [&key](const auto& item) { return item.first == key; });
  return found == header_.metadata.end() ? std::string() : found->second;
}

const SafetensorsEntry* WeightsFile::Find(std::string_view name) const {
  const auto found =
      std::find_if(header_.tensors.begin(), header_.tensors.end(),
                   [name](const SafetensorsEntry& entry) { return entry.name == name; });
  return found == header_.tensors.end() ? nullptr : &*found;
}

Result<const SafetensorsEntry*> WeightsFile::Expect(const std::string& name,
                                                    const std::vector<uint64_t>& dims) const {
  const SafetensorsEntry* found = Find(name);
  std::string why;
  if (found == nullptr) {
    why = "the file has no such tensor";
  } else if (!TypeOf(*found)) {
    why = "it is " + found->dtype + "; weights are read as F32, BF16 or F16";
  } else if (found->shape != dims) {
    why = "it has the shape " + ShapeText(found->shape) + ", the model needs " + ShapeText(dims);
  }

  if (why.empty()) return found;
  return Status(ErrorId::kDataBad, "tensor " + name + " does not fit the model")
      .Where(path_)
      .Why(why)
      .Fix("give the weights of the model that config.json beside them describes");
}

Status WeightsFile::Read(const SafetensorsEntry& tensor, uint64_t first,
                         std::span<float> values) const {
  const DType dtype = TypeOf(tensor).value_or(DType::kF32);
  const uint64_t begin = data_begin_ + tensor.begin + first * BytesOf(dtype);
  if (dtype == DType::kF32) return ReadBytes(begin, values.data(), values.size_bytes());

  std::vector<uint16_t> piece(std::min<uint64_t>(values.size(), kPieceElements));
  for (uint64_t at = 0; at < values.size(); at += piece.size()) {
    const uint64_t some = std::min<uint64_t>(piece.size(), values.size() - at);
    TP_RETURN_IF_ERROR(
        ReadBytes(begin + at * sizeof(uint16_t), piece.data(), some * sizeof(uint16_t)));
    for (uint64_t i = 0; i < some; ++i)
      values[at + i] = optim::WidenElement(piece.data(), dtype, i);
  }
  return {};
}

Status WeightsFile::ReadRaw(const SafetensorsEntry& tensor, std::span<std::byte> bytes) const {
  return ReadBytes(data_begin_ + tensor.begin, bytes.data(), bytes.size());
}

FileStamp WeightsFile::Stamp() const {
  constexpr int64_t kNsOfSecond = 1'000'000'000;
  struct stat seen {};
  if (fstat(fd_.get(), &seen) != 0) return {};
  return {.device = seen.st_dev,
          .inode = seen.st_ino,
          .bytes = static_cast<uint64_t>(seen.st_size),
          .modified_ns = seen.st_mtim.tv_sec * kNsOfSecond + seen.st_mtim.tv_nsec,
          .changed_ns = seen.st_ctim.tv_sec * kNsOfSecond + seen.st_ctim.tv_nsec};
}

Result<ContentHash> WeightsFile::HashFile() const {
  ContentHasher hasher;
  std::vector<std::byte> piece(std::min(bytes_, kHashPieceBytes));
  for (uint64_t at = 0; at < bytes_;) {
    const uint64_t some = std::min<uint64_t>(piece.size(), bytes_ - at);
    TP_RETURN_IF_ERROR(ReadBytes(at, piece.data(), some));
    hasher.Update({piece.data(), some});
    at += some;
  }
  return hasher.Finish();
}

Status CheckTrainedOver(const WeightsFile& adapters, const WeightsFile& base) {
  const std::string trained_over = adapters.Metadata(kBaseHashKey);
  TP_ASSIGN_OR_RETURN(const ContentHash hash, base.HashFile());
  if (HexOf(hash) == trained_over) return {};
  return Status(ErrorId::kDataBad, "these adapters were trained over another base")
      .Where(base.path())
      .Why("its bytes have the hash " + HexOf(hash) + " (`b2sum -l 256`); " + adapters.path() +
           " names " + (trained_over.empty() ? std::string("none") : trained_over))
      .Fix("give the base that they were trained over, with --base");
}

Status AddMetadata(const std::string& path,
                   const std::vector<std::pair<std::string, std::string>>& metadata) {
  TP_ASSIGN_OR_RETURN(const WeightsFile file, WeightsFile::Open(path));
  SafetensorsHeader header = file.header();
  header.metadata.insert(header.metadata.end(), metadata.begin(), metadata.end());

  std::vector<std::byte> data;
  for (const SafetensorsEntry& tensor : header.tensors) {
    const size_t at = data.size();
    data.resize(at + (tensor.end - tensor.begin));
    TP_RETURN_IF_ERROR(file.ReadRaw(tensor, std::span(data).subspan(at)));
  }

  TP_ASSIGN_OR_RETURN(const std::string text, EncodeSafetensorsHeader(&header));
  return WriteWholeFile(path, {std::as_bytes(std::span(text)), std::span(data)});
}

}  // namespace tidepool::trainer
