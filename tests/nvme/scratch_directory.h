// ScratchDirectory: an empty directory of mode 0700 on the disk that the build lies on (a tmpfs
// takes direct transfers without their rules).
#pragma once

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace tidepool::nvme {

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string form = (std::filesystem::current_path() / "nvme_scratch_XXXXXX").string();
    EXPECT_NE(mkdtemp(form.data()), nullptr);
    path_ = form;
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tidepool::nvme
