// TempFolder and writers of data files, for the tests of trainer/data.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tidepool::trainer {

// A folder that goes away with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tidepool_data_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file.string();
  }

 private:
  std::string path_;
};

template <typename Id>
std::string IdBytes(const std::vector<uint32_t>& ids) {
  std::string bytes;
  for (const uint32_t id : ids) {
    for (size_t i = 0; i < sizeof(Id); ++i) bytes += static_cast<char>(id >> (8 * i) & 0xFF);
  }
  return bytes;
}

inline std::string LlmcHeader(uint32_t magic, uint32_t version, uint32_t tokens) {
  std::vector<uint32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return IdBytes<uint32_t>(header);
}

}  // namespace tidepool::trainer
