// FlagReader: the command line of a test's program. Each flag names the variable that it sets.
//
// Thread: the program's first, before it starts others. The variables belong to the caller and
// outlive the reader. It stands in for CLI11 in tests, which takes longer to compile than they do.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::testing {

class FlagReader {
 public:
  // Takes the word behind the flag; false when it is not one that the flag knows.
  using Setter = std::function<bool(std::string_view word)>;

  // `purpose`: what --help says of the program.
  explicit FlagReader(std::string purpose);

  // A flag without a word: sets `value` to true.
  void Switch(const std::string& name, bool* value, const std::string& help = "");
  // A flag with a word. `allowed`: the words that are accepted; empty: all.
  void Text(const std::string& name, std::string* value, const std::string& help = "",
            std::vector<std::string> allowed = {});
  // A flag with all words up to the next flag, at least one.
  void Texts(const std::string& name, std::vector<std::string>* values,
             const std::string& help = "");
  // A flag with a number from `least` to `most`.
  template <std::integral Number>
  void Add(const std::string& name, Number* value, const std::string& help = "", Number least = 0,
           Number most = std::numeric_limits<Number>::max());
  // A flag whose word goes to `setter`.
  void Set(const std::string& name, Setter setter, const std::string& help = "");

  // Sets the variables. Without a value the program goes on; otherwise it ends with that exit code:
  // 0 after --help, 2 after a word that is wrong, which is said on stderr.
  std::optional<int> Read(int argc, char** argv) const;

 private:
  enum class Words { kNone, kOne, kSeveral };
  struct Flag {
    std::string name, help;
    Words words;
    Setter setter;
  };

  const Flag* Find(std::string_view name) const;
  void PrintHelp() const;

  std::string purpose_;
  std::vector<Flag> flags_;
};

template <std::integral Number>
void FlagReader::Add(const std::string& name, Number* value, const std::string& help, Number least,
                     Number most) {
  Set(
      name,
      [value, least, most](std::string_view word) {
        Number number = 0;
        const auto end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data(), end, number);
        if (error != std::errc() || at != end || number < least || number > most) return false;
        *value = number;
        return true;
      },
      help);
}

}  // namespace tidepool::testing
