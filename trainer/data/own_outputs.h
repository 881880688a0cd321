// OwnOutputs: the files in a data folder that the run has written itself. They are not data: a
// restarted run would train on them.
//
// Any thread; a value type.
#pragma once

#include <string>
#include <vector>

namespace tidepool::trainer {

// An empty path: that output is not written.
struct OutputPlaces {
  std::string reports;  // folder of metrics and event files
  std::string weights;  // folder of saved weights
  std::string trace;    // one file
};

class OwnOutputs {
 public:
  // `folder`: the folder whose files are listed. The places need not exist yet.
  OwnOutputs(const std::string& folder, const OutputPlaces& places);

  // `relative`: a file's path relative to the folder. If a place is inside the folder, everything
  // in it is the run's own; if it is the folder, or contains it, only files with the names of a
  // run's outputs are.
  bool Has(const std::string& relative) const;

 private:
  struct Place {
    std::string path;  // with a trailing slash
    bool around;       // is the folder, or contains it
    bool (*has_name)(const std::string& file);
  };
  void Add(const std::string& path, bool (*has_name)(const std::string& file));

  std::string folder_;  // canonical, with a trailing slash
  std::string trace_;
  std::vector<Place> places_;
};

}  // namespace tidepool::trainer
