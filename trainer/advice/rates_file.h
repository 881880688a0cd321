// RatesOfFile: what --rates FILE says of a machine: how fast copies and updates are there, measured
// by somebody.
//
// Any thread. The file, one entry for each number of ranks that was measured (rates of all ranks
//   together; updates may be left out): {"origin": "what was measured, where and when",
//    "rates": [{"ranks": 1, "to_device_gb_per_s": 22, "from_device_gb_per_s": 16,
//               "host_update_g_elements_per_s": 5, "device_update_g_elements_per_s": 50}]}
// GB are 10^9 bytes. Nothing is interpolated: a number of ranks that was not measured has no rates.
#pragma once

#include <string>

#include "base/status.h"
#include "trainer/plan/search.h"

namespace tidepool::trainer {

struct RatesOfFile {
  Rates rates;
  std::string file;
  std::string origin;  // as the file says
};

// Errors: kConfigUnreadable, kConfigBadValue (the text says which value, and lists the numbers of
// ranks that the file has).
Result<RatesOfFile> ReadRates(const std::string& file, uint32_t ranks);

}  // namespace tidepool::trainer
