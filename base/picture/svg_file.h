// SvgFile: a picture in a file of its own, laid out from top to bottom.
//
// One thread. Horizontal positions are shares of the width: the file may be shown 420 to 3840
// pixels wide, without a script.
#pragma once

#include <string>
#include <vector>

#include "base/picture/chart.h"

namespace tidepool {

class SvgFile {
 public:
  // Texts for readers who do not see the picture.
  SvgFile(std::string title, std::string description)
      : title_(std::move(title)), description_(std::move(description)) {}

  // Where the next part begins, in pixels.
  double y() const { return y_; }
  // Adds the title as a headline, in lines that fit the narrowest picture.
  void AddTitle();
  // Adds a text, in such lines too.
  void AddWords(const std::string& text);
  // Adds a line of text, and a small one at its right end; a small one alone begins at the left.
  void AddLine(const std::string& left, const std::string& right);
  // Adds the key, in two columns.
  void AddKey(const std::vector<KeyEntry>& key);
  // Adds elements that reach from y() `height` pixels down.
  void Add(const std::string& elements, double height);
  // The document, which is `width` pixels wide where nothing else is asked for.
  std::string Take(double width) const;

 private:
  void AddLines(const std::string& kind, const std::string& text, size_t letters, double line);

  const std::string title_, description_;
  std::string svg_;
  double y_ = 0;
};

}  // namespace tidepool
