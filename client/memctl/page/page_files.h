// PageFiles: the files of client/memctl/page/, compiled into the program, that `memctl page`
// serves.
//
// Any thread; constant.
#pragma once

#include <span>
#include <string_view>

namespace tidepool::client {

struct PageFile {
  std::string_view path;  // "/page.js"
  std::string_view content_type;
  std::string_view text;
};

std::span<const PageFile> PageFiles();

}  // namespace tidepool::client
