#include "tests/fuzz/kept_images.h"

#include <unistd.h>

#include <map>

#include "base/check.h"
#include "base/point.h"
#include "memserver/residency/kept/job_records.h"
#include "tests/fakes/small_trainer.h"

namespace tidepool::memserver {
namespace {

std::vector<std::byte> BytesOf(int fd, uint64_t bytes) {
  std::vector<std::byte> content(bytes);
  TP_CHECK(pread(fd, content.data(), bytes, 0) == static_cast<ssize_t>(bytes),
           "a memfd is read whole");
  return content;
}

KeptImage Capture(ServeWorld* world, std::string name) {
  KeptImage image;
  image.name = std::move(name);
  image.index = BytesOf(world->index().fd(), kIndexBytes);
  const std::vector<PoolPiece> pieces = world->pool().pieces();
  TP_CHECK(pieces.size() == 1, "a small pool is one piece");
  image.pool = BytesOf(pieces.front().fd, pieces.front().bytes);
  auto contents = ReadIndex(image.index);
  TP_CHECK(contents.ok(), "a server leaves a sound index");
  image.jobs = contents->jobs;
  for (const IndexedJob& job : image.jobs) {
    auto kept = ReadJobRecords(world->pool().Look(job.records_offset, job.records_bytes), job);
    TP_CHECK(kept.ok(), "a server leaves sound records");
    image.specs.push_back(*kept->spec);
  }
  return image;
}

// Takes an image whenever a point is hit for the named time, and calls it "job: point".
class Photographer {
 public:
  Photographer(ServeWorld* world, std::vector<KeptImage>* images, const std::string& job,
               std::map<std::string, uint32_t> when) {
    SetPointHook([this, world, images, job, wanted = std::move(when)](const char* point) {
      const auto found = wanted.find(point);
      if (found != wanted.end() && ++hits_[point] == found->second)
        images->push_back(Capture(world, job + ": " + point));
    });
  }
  ~Photographer() { SetPointHook(nullptr); }

 private:
  std::map<std::string, uint32_t> hits_;
};

SpecOptions PlainJob() {
  return {.name = "plain", .chunk_elements = 768, .max_grad_norm = 1};
}
SpecOptions AddingJob() {
  return {.name = "adding",
          .world = 2,
          .dtype = DType::kBF16,
          .chunk_elements = 1024,
          .micro_batches = 2,
          .loss_scaling = 1,
          .f32_chunks = 1};
}

WorldOptions ImageWorld() {
  return {.pool_bytes = kImagePoolBytes,
          .tunings = {{.each_tile = true}},
          .loop = {.times = {.lease_ns = kNsPerSecond}, .rcache_limit = 64 * kMiB}};
}

// Weights, two steps with updates, and a third that begins.
void PlainImages(std::vector<KeptImage>* images) {
  ServeWorld world(ImageWorld());
  SmallTrainer trainer(&world, MakeSpec(PlainJob()));
  const Photographer photographer(&world, images, "plain",
                                  {{"server.put_kept", 3},
                                   {"server.step_recorded", 2},
                                   {"server.step_sealed", 2},
                                   {"optim.tile_progress", 9},
                                   {"optim.tile_written", 10},
                                   {"server.chunk_published", 3},
                                   {"server.gradient_stored", 5}});
  TP_CHECK(trainer.JoinAll(), "the pool has room for a job");
  trainer.PutWeights(5);
  trainer.Step({.seed = 7});
  const GroupNumbers numbers = NumbersOf(trainer.spec().optimizer, 0.02F, 0.1F);
  for (int step = 0; step < 2; ++step)
    trainer.Step({.seed = 7, .untouched = {1}, .groups = {{0, numbers}}});
  world.Settle();
  images->push_back(Capture(&world, "plain: at rest"));
}

// Gradients that are added up, and a step that is skipped.
void AddingImages(std::vector<KeptImage>* images) {
  ServeWorld world(ImageWorld());
  SmallTrainer trainer(&world, MakeSpec(AddingJob()));
  SmallTrainer beside(&world, MakeSpec(PlainJob()));
  const Photographer photographer(&world, images, "adding",
                                  {{"server.put_kept", 5},
                                   {"server.gradient_staged", 6},
                                   {"optim.tile_written", 3},
                                   {"optim.piece_finished", 2},
                                   {"server.staging_free", 5},
                                   {"server.step_sealed", 2}});
  TP_CHECK(trainer.JoinAll(), "the pool has room for a job");
  trainer.PutWeights(5);
  trainer.Step({.seed = 7});
  trainer.Step({.loss_scale = 8, .seed = 7, .poisoned = true});
  TP_CHECK(beside.JoinAll(), "the pool has room for a second job");
  beside.PutWeights(6);
  trainer.Submit({.seed = 9});
  images->push_back(Capture(&world, "two jobs"));
}

}  // namespace

std::vector<KeptImage> MakeKeptImages() {
  std::vector<KeptImage> images;
  PlainImages(&images);
  AddingImages(&images);
  return images;
}

}  // namespace tidepool::memserver
