// PagePictures: the pictures of `memctl page`: stripes of chunks, and curves over its looks so far,
// at most those of the last two minutes.
//
// One thread. The browser inserts them unchanged into the page; foreign texts in them are escaped.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/admin/views.h"
#include "client/memctl/views/job_charts.h"

namespace tidepool::client {

class PagePictures {
 public:
  static constexpr double kSecondsShown = 120;
  static constexpr size_t kRatesShown = 240;  // looks

  // Adds a look (three reports of memserver, as JSON), and returns its pictures as JSON:
  // {"rates":{"to-ranks":{"now":...,"picture":"<svg..."}},"key":"<ul...",
  //  "jobs":{"7":{"fold":1,"ruler":"...","rows":["..."],"charts":"..."}}}. Errors: kHandshakeBad (a
  // memserver of another release).
  Result<std::string> Draw(const std::string& status, const std::string& jobs,
                           const std::string& residency);

 private:
  struct Rate {
    uint64_t before = 0;
    bool known = false;
    std::vector<double> values{};
  };
  void AddRates(const StatusView& status);
  void AddJobs(const StatusView& status, const std::vector<JobView>& jobs,
               const ResidencyView& residency);

  double looked_at_ = -1;  // uptime of memserver at the last look, in seconds; negative: none yet
  std::map<std::string, Rate> rates_;
  std::map<uint64_t, std::deque<JobSample>> samples_;
};

}  // namespace tidepool::client
