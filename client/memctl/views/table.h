// Table: rows of text in aligned columns, for people.
//
// One thread. Columns are as wide as their widest cell and two spaces apart; numbers are
// right-aligned, and the last column is not padded.
#pragma once

#include <string>
#include <vector>

namespace tidepool::client {

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  // right-aligned
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell per column. If a row has a node, all rows get a first column NODE.
  void Add(std::vector<std::string> cells, const std::string& node = "");
  std::vector<std::string> Lines(bool with_header) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::string> nodes_;  // one per row
};

// Columns of `text` on a terminal: counts UTF-8 characters, not bytes.
size_t DisplayWidth(const std::string& text);
// `text` without control characters, so that a job's name cannot control the terminal.
std::string Printable(const std::string& text);

}  // namespace tidepool::client
