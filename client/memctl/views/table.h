// Table: rows of text in aligned columns, for people.
//
// One thread. Columns are as wide as their widest cell and two spaces apart; numbers stand on the
// right, the last column is not padded.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // aligned
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell a column. Where a row has a node, all have one column more, NODE, before the others.
  void Add(std::vector<std::string> cells, const std::string& node = "");
  std::vector<std::string> Lines(bool with_header) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::string> nodes_;  // one a row
};

// Columns that `text` takes on a terminal: characters of UTF-8, not bytes.
size_t DisplayWidth(const std::string& text);
// `text` without control characters, so that a job's name cannot command the terminal.
std::string Printable(const std::string& text);

}  // namespace tidepool::client
