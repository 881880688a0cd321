// PageFiles: the page that `memctl page` serves, as it lies in client/memctl/page/, inside the
// program.
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
