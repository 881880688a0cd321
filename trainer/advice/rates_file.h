// RatesOfFile: how fast copies and updates are on a machine: what memserver has measured there, or
// what somebody has written into a file (--rates FILE).
//
// Any thread. The file, one entry for each number of ranks that was measured (rates of all ranks
//   together; updates may be left out): {"origin": "what was measured, where and when",
//    "machine": "device/fingerprint.h", "device": "cpu" or "cuda",
//    "rates": [{"ranks": 1, "to_device_gb_per_s": 22, "from_device_gb_per_s": 16,
//               "host_update_g_elements_per_s": 5, "device_update_g_elements_per_s": 50}]}
// GB are 10^9 bytes. `machine` and `device` may be missing: then the file is for whoever gives it.
// Nothing is interpolated: a number of ranks that was not measured has no rates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trainer/plan/search.h"

namespace tidepool::trainer {

struct RatesOfFile {
  Rates rates;
  std::string file;
  std::string origin;  // as the file says
};

// All that a file holds.
struct RatesTable {
  struct Row {
    uint32_t ranks = 0;
    Rates rates = {};
  };
  std::string file, origin;
  std::string machine, device;  // empty: it does not say
  std::vector<Row> rows;        // as the file has them

  // Errors: kConfigBadValue (lists the numbers of ranks that there are).
  Result<RatesOfFile> For(uint32_t ranks) const;
};

// Errors: kConfigUnreadable, kConfigBadValue (the text says which value).
Result<RatesTable> ReadRatesTable(const std::string& file);
// The rates for so many ranks. Errors: those of ReadRatesTable and RatesTable::For.
Result<RatesOfFile> ReadRates(const std::string& file, uint32_t ranks);

// The machine that rates are wanted for, and what the ranks compute on.
struct RatesWanted {
  uint32_t ranks = 1;
  std::string machine;  // device::MachineFingerprint()
  std::string device;   // "cpu" or "cuda"
};
// Those of a file that somebody gave. Errors: those of ReadRates; kConfigBadValue (they are another
// machine's, or another device's).
Result<RatesOfFile> ReadRatesHere(const std::string& file, const RatesWanted& wanted);

// What memserver has left, where it is of use.
struct FoundRates {
  std::optional<RatesOfFile> rates;
  std::string why_not;  // else
};
FoundRates FindRates(const std::string& file, const RatesWanted& wanted);

}  // namespace tidepool::trainer
