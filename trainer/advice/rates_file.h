// RatesOfFile: copy and update rates of a machine: measured there by memserver, or given in a file
// (--rates FILE).
//
// Any thread. The file has one entry per measured number of ranks (rates are totals of all ranks;
// updates may be left out): {"origin": "what was measured, where and when",
//    "machine": "device/fingerprint.h", "device": "cpu" or "cuda",
//    "rates": [{"ranks": 1, "to_device_gb_per_s": 22, "from_device_gb_per_s": 16,
//               "host_update_g_elements_per_s": 5, "device_update_g_elements_per_s": 50}]}
// GB are 10^9 bytes. `machine` and `device` may be missing: the file is then valid for any. Nothing
// is interpolated: a number of ranks that was not measured has no rates.
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
  std::string origin;  // from the file
};

// The content of a rates file.
struct RatesTable {
  struct Row {
    uint32_t ranks = 0;
    Rates rates = {};
  };
  std::string file, origin;
  std::string machine, device;  // empty: not given
  std::vector<Row> rows;        // in file order

  // Errors: kConfigBadValue (lists the available numbers of ranks).
  Result<RatesOfFile> For(uint32_t ranks) const;
};

// Errors: kConfigUnreadable, kConfigBadValue (the text names the value).
Result<RatesTable> ReadRatesTable(const std::string& file);
// The rates for `ranks` ranks. Errors: those of ReadRatesTable and RatesTable::For.
Result<RatesOfFile> ReadRates(const std::string& file, uint32_t ranks);

// The machine and the device whose rates are wanted.
struct RatesWanted {
  uint32_t ranks = 1;
  std::string machine;  // device::MachineFingerprint()
  std::string device;   // "cpu" or "cuda"
};
// Rates of a user's file. Errors: those of ReadRates; kConfigBadValue (for another machine, or
// another device).
Result<RatesOfFile> ReadRatesHere(const std::string& file, const RatesWanted& wanted);

// memserver's measured rates, if they apply here.
struct FoundRates {
  std::optional<RatesOfFile> rates;
  std::string why_not;  // set if `rates` is not
};
FoundRates FindRates(const std::string& file, const RatesWanted& wanted);

}  // namespace tidepool::trainer
