#include "client/memctl/views/table.h"

#include <algorithm>

#include "base/check.h"

namespace tidepool::client {
namespace {

void AppendCell(const std::string& cell, size_t width, bool right, std::string* line) {
  const std::string padding(width - DisplayWidth(cell), ' ');
  *line += right ? padding + cell : cell + padding;
}

}  // namespace

size_t DisplayWidth(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string Printable(const std::string& text) {
  std::string out = text;
  std::replace_if(
      out.begin(), out.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, '?');
  return out;
}

void Table::Add(std::vector<std::string> cells, const std::string& node) {
  TP_CHECK(cells.size() == columns_.size(), "a row has one cell a column");
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
  nodes_.push_back(Printable(node));
}

std::vector<std::string> Table::Lines(bool with_header) const {
  if (std::any_of(nodes_.begin(), nodes_.end(),
                  [](const std::string& node) { return !node.empty(); })) {
    std::vector<Column> columns{{"NODE"}};
    columns.insert(columns.end(), columns_.begin(), columns_.end());
    Table whole(columns);
    for (size_t i = 0; i < rows_.size(); ++i) {
      std::vector<std::string> cells{nodes_[i]};
      cells.insert(cells.end(), rows_[i].begin(), rows_[i].end());
      whole.Add(std::move(cells));
    }

    return whole.Lines(with_header);
  }
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(with_header ? column.title.size() : 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::vector<std::vector<std::string>> all;
  if (with_header) all.push_back(titles);
  all.insert(all.end(), rows_.begin(), rows_.end());

  std::vector<std::string> lines;
  for (const auto& row : all) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      AppendCell(row[i], widths[i], columns_[i].right, &line);
    }
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
  return lines;
}

}  // namespace tidepool::client
