// bench_gpu: the capabilities of a GPU's links, and how close the product comes: copies, the start
// of a pool, imports and flags between two processes, and the Adam kernel.
//
// Everything is compared with what the driver gives a plain program in the same run. Without a GPU
// it says so and exits with 9.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "base/units.h"
#include "bench/gpu/gpu_beside.h"
#include "bench/gpu/gpu_copies.h"
#include "bench/gpu/gpu_done.h"
#include "bench/gpu/gpu_peer.h"
#include "bench/gpu/gpu_push.h"
#include "bench/harness/row.h"
#include "device/gpu_list.h"

namespace tidepool::bench {
namespace {

// The least certain part comes first.
constexpr std::array<std::string_view, 7> kParts{"done", "copies", "pool", "beside",
                                                 "peer", "push",   "adam"};

constexpr const char* kHelp =
    "bench_gpu [--json FILE] [--only PART | --without PART] [--rounds N] [--copy-mebibytes N] "
    "[--pool-mebibytes N] [--adam-mebi-elements "
    "N]\n"
    "          [--trips N]\n"
    "PART is done (fetches through a memserver and their `done` words, by either writer, alone and "
    "beside matrix products), copies (sizes\n"
    "of 64 KiB to 256 MiB, both ways), pool (its start), beside (host memory while both engines "
    "copy), peer (imports and flags between\n"
    "two processes), push (chunks through a memserver, alone and beside matrix products) or adam "
    "(the\n"
    "kernel); all of them without --only.\n"
    "Takes about a minute and, with the defaults, 3 GiB of the GPU and 9 GiB of the host. On the "
    "first GPU of CUDA_VISIBLE_DEVICES.\n"
    "Exit codes: 0 every target holds, 1 a failure, 3 a target does not hold, 9 there is no GPU "
    "that can be used.\n";

int Main(int argc, char** argv) {
  RowPrinter printer(argc, argv, kHelp);
  GpuSetup setup;
  const std::string only = printer.Word("--only", ""), without = printer.Word("--without", "");
  setup.rounds = printer.Number("--rounds", 7);
  setup.copy_bytes = printer.Number("--copy-mebibytes", 512) * kMiB;
  setup.pool_bytes = printer.Number("--pool-mebibytes", 4096) * kMiB;
  setup.adam_elements = printer.Number("--adam-mebi-elements", 128) * kMiB;
  const uint64_t trips = printer.Number("--trips", 20'000);
  printer.NoMoreArguments();

  for (const std::string& part : {only, without}) {
    if (!part.empty() && std::find(kParts.begin(), kParts.end(), part) == kParts.end())
      Die("error[TP1001]: there is no part '" + part + "' (see --help)");
  }

  const auto wanted = [&](std::string_view part) {
    return part != without && (only.empty() || only == part);
  };
  // Created before the driver is started.
  std::unique_ptr<GpuPeer> peer;
  if (wanted("peer")) peer = std::make_unique<GpuPeer>(0);

  const auto gpus = device::ListGpus();
  if (!gpus.ok()) {
    std::fprintf(stderr, "bench_gpu: nothing is measured without a GPU\n%s\n",
                 gpus.status().Format().c_str());
    return gpus.status().exit_code();
  }

  const auto device = OrDie(device::CudaDevice::Open({}));
  std::fprintf(stderr, "bench_gpu: %s, %s; memory leaves it by %s\n", device->name().c_str(),
               device->gpu().name.c_str(), device->form_note().c_str());
  setup.device = device.get();

  if (wanted("done")) MeasureDone(setup, &printer);
  if (wanted("copies")) MeasureCopies(setup, &printer);
  if (wanted("pool")) MeasurePoolStart(setup, &printer);
  if (wanted("beside")) MeasureMemoryBeside(setup, &printer);
  if (wanted("peer")) {
    peer->MeasureImport(std::min(setup.copy_bytes, 256 * kMiB), 5 * setup.rounds, &printer);
    peer->MeasureFlags(device.get(), trips, &printer);
  }
  if (wanted("push")) MeasurePush(setup, &printer);
  if (wanted("adam")) MeasureAdam(setup, &printer);
  return printer.Finish();
}

}  // namespace
}  // namespace tidepool::bench

int main(int argc, char** argv) {
  return tidepool::bench::Main(argc, argv);
}
