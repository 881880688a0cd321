// Fuzz target: kept memory that a server finds: index and job records with damaged words, read,
// recovered, and worked with until the loop comes to rest (attack A18 of the reliability notes). A
// job is recovered, or given up with a reason; nothing else may happen.
#include <fcntl.h>

#include "base/check.h"
#include "base/log.h"
#include "tests/fuzz/descriptor_watch.h"
#include "tests/fuzz/kept_damage.h"
#include "tests/fuzz/kept_server.h"

namespace tidepool::memserver {
namespace {

using fuzz::FuzzInput;

KeptStage& TheStage() {
  static auto* stage = new KeptStage;  // stays as long as the process
  return *stage;
}

bool IsGeometryOf(const HostPool& pool, const PoolGeometry& geometry) {
  const PoolGeometry ours = pool.geometry();
  return ours.bytes == geometry.bytes && ours.own_bytes == geometry.own_bytes &&
         ours.piece_bytes == geometry.piece_bytes;
}

// A pool of another shape than the index says is refused; or it is mapped, and then goes again.
void AdoptOther(const KeptStage& stage, const PoolGeometry& geometry) {
  std::vector<UniqueFd> pieces;
  pieces.emplace_back(fcntl(stage.pool()->pieces().front().fd, F_DUPFD_CLOEXEC, 0));
  const auto pool = HostPool::Adopt(std::move(pieces), geometry);
  const ErrorId id = pool.status().id();
  TP_CHECK(pool.ok() || id == ErrorId::kKeptMemoryBad || id == ErrorId::kMemoryMapFailed,
           "the documented errors");
}

void RunOne(FuzzInput* input) {
  KeptStage& stage = TheStage();
  const KeptImage& image =
      stage.images()[input->Choice(static_cast<uint32_t>(stage.images().size()))];
  stage.Fill(image);
  const uint32_t changes = DamageKept(input, image, stage.index_bytes(), stage.pool_bytes());
  IndexContents contents;
  auto index = stage.AdoptIndex(&contents);
  if (!index.ok()) {
    const ErrorId id = index.status().id();
    return TP_CHECK(
        changes > 0 && (id == ErrorId::kKeptMemoryBad || id == ErrorId::kKeptLayoutUnknown),
        "the documented errors");
  }
  if (!IsGeometryOf(*stage.pool(), contents.geometry)) return AdoptOther(stage, contents.geometry);
  KeptServer server(stage, std::move(index).value());
  // Any of the servers that it says had copies of jobs may be there still; they end later.
  const uint32_t living = changes > 0 && input->OneIn(2) ? ~uint32_t{0} : 0;
  const Status recovered = server.loop().Recover(contents, {}, living);
  if (!recovered.ok())
    return TP_CHECK(changes > 0 && recovered.id() == ErrorId::kNvmeDirectoryMissing,
                    "the documented error");
  TP_CHECK(changes > 0 || server.loop().tables().jobs.size() == image.jobs.size(),
           "what was not damaged is recovered");
  server.Settle();
  server.EndFormer();
  server.ResumeAll();
  for (uint32_t steps = input->Choice(3); steps > 0; --steps) server.WorkOn();
  server.LoseAll();
}

}  // namespace
}  // namespace tidepool::memserver

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidepool::SetLogLevel(tidepool::LogLevel::kError);
  tidepool::memserver::TheStage();
  const tidepool::fuzz::DescriptorWatch watch;
  tidepool::fuzz::FuzzInput input(data, size);
  tidepool::memserver::RunOne(&input);
  watch.CheckSame();
  return 0;
}
