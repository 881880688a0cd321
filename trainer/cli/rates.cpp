// `trainer rates`: this machine's copy and update rates, as measured by memserver.
#include <array>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include "base/text/error_text.h"
#include "client/admin/rates_place.h"
#include "device/fingerprint.h"
#include "trainer/advice/rates_file.h"
#include "trainer/cli/run.h"

namespace tidepool::trainer {
namespace {

std::string Cell(double rate, const char* unit) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%10.2f %-5s", rate, unit);
  return rate > 0 ? text.data() : std::string(9, ' ') + "-" + std::string(6, ' ');
}

std::string Table(const RatesTable& table, const std::string& here) {
  std::string text = "rates     " + table.origin + " (--device " + table.device + ")\n";
  if (!table.machine.empty() && table.machine != here)
    text += "          another machine than this, which is " + here + ": plans do not use them\n";
  text += "\nranks       to device     from device    update, host  update, device\n";

  for (const RatesTable::Row& row : table.rows) {
    std::string ranks = std::to_string(row.ranks);
    ranks.resize(6, ' ');
    text += ranks + Cell(row.rates.to_device, "GB/s") + Cell(row.rates.from_device, "GB/s") +
            Cell(row.rates.host_update, "Gel/s") + Cell(row.rates.device_update, "Gel/s") + "\n";
  }
  return text +
         "\nall ranks together; GB are 10^9 bytes, Gel 10^9 elements of Adam in a 16-bit job\n";
}

Result<std::string> Show(const std::string& file, bool json) {
  Result<RatesTable> table = ReadRatesTable(file);
  if (table.status().id() == ErrorId::kConfigUnreadable) {
    return Status(ErrorId::kConfigUnreadable,
                  "there are no rates of this machine: " + table.status().what())
        .Where("trainer rates")
        .Why(
            "memserver measures them once, when it has had no job for 10 s; a private one "
            "(--standalone) never does")
        .Fix("start memserver without --measure-rates off, and ask again some seconds later");
  }

  TP_RETURN_IF_ERROR(table.status());
  if (!json) return Table(table.value(), device::MachineFingerprint());

  std::ifstream in(file);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return text;
}

}  // namespace

int RunRates(const ServerOptions& server, const OutputOptions& output) {
  const Result<std::string> shown = Show(client::RatesPlace(server.socket_dir), output.json);
  if (!shown.ok()) {
    std::cerr << ErrorText(shown.status()) << "\n";
    return shown.status().exit_code();
  }
  std::cout << shown.value();
  return kExitOk;
}

}  // namespace tidepool::trainer
