#include "base/error_catalog.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/status.h"

namespace tidepool {
namespace error_catalog_test {

// "| TP2101 | PoolFull | 5 | what it means | advice |" as trimmed cells.
std::vector<std::string> Cells(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream parts(line.substr(1));
  for (std::string cell; std::getline(parts, cell, '|');) {
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos
                        ? ""
                        : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

// The width of a terminal in which every text of the catalogue fits a line.
constexpr size_t kColumns = 100;

// Rows of docs/errors.md by their first cell.
std::map<std::string, std::vector<std::string>> PageRows() {
  std::map<std::string, std::vector<std::string>> rows;
  std::ifstream page(TIDEPOOL_ERRORS_PAGE);
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| TP")) continue;
    const std::vector<std::string> cells = Cells(line);
    EXPECT_TRUE(rows.emplace(cells.at(0), cells).second)
        << cells.at(0) << " stands twice in docs/errors.md";
  }
  return rows;
}

std::string NumberText(const ErrorEntry& entry) {
  return "TP" + std::to_string(static_cast<int>(entry.id));
}

TEST(ErrorCatalog, NumbersAreSortedAndUnique) {
  int last = 0;
  for (const ErrorEntry& entry : ErrorCatalog()) {
    EXPECT_GT(static_cast<int>(entry.id), last) << entry.name;
    last = static_cast<int>(entry.id);
  }
}

TEST(ErrorCatalog, NamesAreUniqueAndEveryEntrySaysWhatToDo) {
  std::set<std::string> names;
  for (const ErrorEntry& entry : ErrorCatalog()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    const std::string advice = entry.advice;
    EXPECT_GT(advice.size(), 10U) << entry.name;
    const std::string shown = Status(entry.id, "it failed").Format();
    EXPECT_LE(shown.size() - shown.rfind('\n') - 1, kColumns)
        << shown << "\nis too wide for a terminal";
    EXPECT_NE(advice.back(), '.') << entry.name;
    EXPECT_EQ(advice.find_first_of("|\n"), std::string::npos) << entry.name;
    const std::string meaning = entry.meaning;
    EXPECT_GT(meaning.size(), 10U) << entry.name;
    EXPECT_EQ(meaning.back(), '.') << entry.name;
    EXPECT_EQ(meaning.find_first_of("|\n"), std::string::npos) << entry.name;
    EXPECT_NE(entry.code, Code::kOk) << entry.name;
    EXPECT_NE(entry.exit_code, kExitOk) << entry.name;
  }
}

TEST(ErrorCatalog, AnUnknownNumberOfAPeerIsAnInternalError) {
  EXPECT_EQ(ErrorEntryOf(static_cast<ErrorId>(65'000)).id, ErrorId::kInternal);
  EXPECT_EQ(ErrorEntryOf(ErrorId::kPoolFull).id, ErrorId::kPoolFull);
}

TEST(ErrorsPage, HasExactlyOneRowForEveryEntry) {
  auto rows = PageRows();
  ASSERT_FALSE(rows.empty()) << TIDEPOOL_ERRORS_PAGE;
  for (const ErrorEntry& entry : ErrorCatalog()) {
    const std::string number = NumberText(entry);
    const std::string expected = "| " + number + " | " + entry.name + " | " +
                                 std::to_string(entry.exit_code) + " | " + entry.meaning + " | " +
                                 entry.advice + " |";
    const auto row = rows.find(number);
    if (row == rows.end()) {
      ADD_FAILURE() << "docs/errors.md lacks (scripts/errors_page.py writes it): " << expected;
      continue;
    }
    const std::vector<std::string>& cells = row->second;
    ASSERT_EQ(cells.size(), 5U) << number;
    EXPECT_EQ(cells[1], entry.name) << number;
    EXPECT_EQ(cells[2], std::to_string(entry.exit_code)) << number;
    EXPECT_EQ(cells[3], entry.meaning) << number;
    EXPECT_EQ(cells[4], entry.advice) << number;
    rows.erase(row);
  }
  for (const auto& [number, cells] : rows)
    ADD_FAILURE() << "docs/errors.md has " << number << ", the catalogue has not";
}

}  // namespace error_catalog_test
}  // namespace tidepool
