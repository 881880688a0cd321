#include "trainer/checkpoint/step_replay.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

class StepReplay {
 public:
  explicit StepReplay(const ReplayParts& parts) : parts_(parts) {}

  Status All() {
    TP_RETURN_IF_ERROR(MakeHalves());
    TP_RETURN_IF_ERROR(AwaitWeights());
    for (size_t index = 0; index < parts_.log->steps().size(); ++index)
      TP_RETURN_IF_ERROR(Step(index));
    return {};
  }

 private:
  struct Half {
    std::byte* data = nullptr;  // where the CPU assembles it
    uint64_t at = 0;            // in the rCache
    client::Ticket ticket = 0;  // 0: nothing in flight
  };

  uint64_t ElementBytes(ChunkId chunk) const {
    return BytesOf(client::GradientSlotType(parts_.spec, chunk));
  }

  // As many shards at once as the rCache has room for, two at most.
  Status MakeHalves() {
    uint64_t largest = 0;
    for (ChunkId chunk = 0; chunk < parts_.spec.chunks.size(); ++chunk) {
      if (parts_.spec.IsMember(chunk, parts_.rank))
        largest = std::max(largest, parts_.spec.ShardElements(chunk) * ElementBytes(chunk));
    }

    const client::Attachment& attachment = parts_.service->attachment();
    if (largest > attachment.rcache_bytes)
      return Status(ErrorId::kRcacheTooSmall, "the gradient of a chunk has " +
                                                  FormatBytes(largest) + ", and the rCache has " +
                                                  FormatBytes(attachment.rcache_bytes))
          .Why("logged steps are made again through the rCache")
          .Fix("give more to --rcache");

    if (largest == 0) return {};
    halves_.resize(2 * largest <= attachment.rcache_bytes ? 2 : 1);
    if (parts_.copy_in != nullptr) staging_.resize(halves_.size() * largest);
    for (size_t i = 0; i < halves_.size(); ++i) {
      halves_[i].at = i * largest;
      halves_[i].data = parts_.copy_in != nullptr ? staging_.data() + i * largest
                                                  : attachment.rcache + i * largest;
    }
    return {};
  }

  // What was put may not be in its planes yet, or another rank still puts. A fetch waits for the
  // weights of the whole job; a gradient that comes before them is refused.
  Status AwaitWeights() {
    const client::JobSpec& spec = parts_.spec;
    ChunkId chunk = 0;
    while (chunk < spec.chunks.size() && !spec.IsMember(chunk, parts_.rank)) ++chunk;
    if (chunk == spec.chunks.size()) return {};

    const uint64_t begin = spec.ShardIndex(chunk, parts_.rank) * spec.ShardElements(chunk);
    TP_ASSIGN_OR_RETURN(
        const client::Ticket ticket,
        parts_.service->StartFetch(
            {.chunk = chunk, .element_begin = begin, .element_count = 1, .rcache_offset = 0},
            parts_.log->steps().front().version - 1));
    const client::TicketFlags flags = parts_.service->FlagsOf(ticket);
    if (flags.ready != nullptr) flags.ready->store(flags.value, std::memory_order_release);
    return parts_.service->Wait(ticket).status();
  }

  Status Step(size_t index) {
    const LoggedStep& step = parts_.log->steps()[index];
    for (ChunkId chunk = 0; chunk < parts_.spec.chunks.size(); ++chunk) {
      if (parts_.spec.IsMember(chunk, parts_.rank)) TP_RETURN_IF_ERROR(Submit(index, chunk));
    }
    for (Half& half : halves_) TP_RETURN_IF_ERROR(WaitFor(&half));

    TP_ASSIGN_OR_RETURN(const client::Ticket ended,
                        parts_.service->StartEndStep({.version = step.version - 1,
                                                      .learning_rate = step.learning_rate,
                                                      .loss_scale = step.loss_scale,
                                                      .data_cursor = step.data_cursor,
                                                      .scaler_steps = step.scaler_steps,
                                                      .random_state = step.random_state}));
    TP_ASSIGN_OR_RETURN(const client::Outcome outcome, parts_.service->Wait(ended));

    const bool same_norm = step.skipped != 0 || std::bit_cast<uint64_t>(outcome.grad_norm) ==
                                                    std::bit_cast<uint64_t>(step.grad_norm);
    if (outcome.version == step.version && outcome.skipped == (step.skipped != 0) && same_norm)
      return {};
    return Status(ErrorId::kDataBad, "step " + std::to_string(step.version) +
                                         " of the log came out otherwise than it was logged")
        .Why("the norm of its gradients is " + std::to_string(outcome.grad_norm) + ", and was " +
             std::to_string(step.grad_norm))
        .Fix("name the checkpoint itself, --resume DIR/step-..., to go on without the log");
  }

  Status Submit(size_t index, ChunkId chunk) {
    const client::JobSpec& spec = parts_.spec;
    const uint64_t count = spec.ShardElements(chunk), element = ElementBytes(chunk);
    const uint64_t begin = spec.ShardIndex(chunk, parts_.rank) * count;
    Half& half = halves_[next_];
    next_ = (next_ + 1) % halves_.size();
    TP_RETURN_IF_ERROR(WaitFor(&half));

    const std::span bytes(half.data, count * element);
    parts_.log->steps()[index].skipped != 0 ? FillInfinite(chunk, bytes)
                                            : std::fill(bytes.begin(), bytes.end(), std::byte{0});
    TP_RETURN_IF_ERROR(FillShard(index, chunk, begin, bytes));
    if (parts_.copy_in != nullptr) TP_RETURN_IF_ERROR(parts_.copy_in(half.at, bytes));

    TP_ASSIGN_OR_RETURN(half.ticket,
                        parts_.service->StartSubmitSum({.chunk = chunk,
                                                        .element_begin = begin,
                                                        .element_count = count,
                                                        .rcache_offset = half.at},
                                                       parts_.log->steps()[index].version - 1));
    const client::TicketFlags flags = parts_.service->FlagsOf(half.ticket);
    if (flags.ready != nullptr) flags.ready->store(flags.value, std::memory_order_release);
    return {};
  }

  // Gradients of which none is finite: the step is skipped again.
  void FillInfinite(ChunkId chunk, std::span<std::byte> bytes) const {
    constexpr uint32_t kF32 = 0x7f800000;
    constexpr uint16_t kBf16 = 0x7f80, kF16 = 0x7c00;
    const DType type = client::GradientSlotType(parts_.spec, chunk);
    const uint16_t half = type == DType::kBF16 ? kBf16 : kF16;
    for (size_t at = 0; at < bytes.size(); at += BytesOf(type)) {
      if (type == DType::kF32) std::memcpy(bytes.data() + at, &kF32, sizeof kF32);
      if (type != DType::kF32) std::memcpy(bytes.data() + at, &half, sizeof half);
    }
  }

  // Reads what the shard has of each parameter; padding stays as it is.
  Status FillShard(size_t index, ChunkId chunk, uint64_t begin, std::span<std::byte> bytes) {
    if (parts_.log->steps()[index].skipped != 0) return {};
    const uint64_t element = ElementBytes(chunk), end = begin + bytes.size() / element;
    for (uint32_t id = FirstOf(chunk); id < parts_.spec.parameters.size(); ++id) {
      const client::ParameterSpec& parameter = parts_.spec.parameters[id];
      if (parameter.chunk != chunk) break;
      const uint64_t first = std::max(parameter.element_begin, begin);

      const uint64_t last = std::min(parameter.element_begin + parameter.element_count, end);
      if (first >= last) continue;
      TP_RETURN_IF_ERROR(
          parts_.log->Read(index, id, (first - parameter.element_begin) * element,
                           bytes.subspan((first - begin) * element, (last - first) * element)));
    }
    return {};
  }

  uint32_t FirstOf(ChunkId chunk) const {
    const auto& parameters = parts_.spec.parameters;
    const auto found = std::lower_bound(
        parameters.begin(), parameters.end(), chunk,
        [](const client::ParameterSpec& parameter, ChunkId id) { return parameter.chunk < id; });
    return static_cast<uint32_t>(found - parameters.begin());
  }

  Status WaitFor(Half* half) {
    if (half->ticket == 0) return {};
    const client::Ticket ticket = half->ticket;
    half->ticket = 0;
    return parts_.service->Wait(ticket).status();
  }

  const ReplayParts& parts_;
  std::vector<std::byte> staging_;
  std::vector<Half> halves_;
  size_t next_ = 0;
};

}  // namespace

Status ReplaySteps(const ReplayParts& parts) {
  return StepReplay(parts).All();
}

}  // namespace tidepool::trainer
