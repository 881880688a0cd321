// OwnOutputs: which files of a data folder a run has written itself. They are no data: a run that
// is started again would train on them.
//
// Any thread; a value type.
#pragma once

#include <string>
#include <vector>

namespace tidepool::trainer {

// An empty path stands for an output that is not written.
struct OutputPlaces {
  std::string reports;  // folder of metrics and event files
  std::string weights;  // folder of saved weights
  std::string trace;    // one file
};

class OwnOutputs {
 public:
  // `folder`: the one whose files are listed. The places need not exist yet.
  OwnOutputs(const std::string& folder, const OutputPlaces& places);

  // `relative`: path of a file from the folder. In a place that lies inside the folder everything
  // is the run's own; where a place is the folder, or around it, only files with the names that
  // runs give.
  bool Has(const std::string& relative) const;

 private:
  struct Place {
    std::string path;  // with a slash at its end
    bool around;       // is the folder, or holds it
    bool (*has_name)(const std::string& file);
  };
  void Add(const std::string& path, bool (*has_name)(const std::string& file));

  std::string folder_;  // canonical, with a slash at its end
  std::string trace_;
  std::vector<Place> places_;
};

}  // namespace tidepool::trainer
