#include "memserver/traffic/spill_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/formats/split_float.h"
#include "shm/spec/state_footprint.h"

namespace tidepool::memserver {
namespace {

constexpr uint32_t kTriesMax = 3;
// If a job's chunks are of two types, the first ones have the wider states.
constexpr ChunkId kLargestForm = 0;

}  // namespace

SpillReader::SpillReader(const JobStates& states, std::vector<File> files)
    : states_(states),
      spec_(states.shared_spec()),
      files_(std::move(files)),
      job_nonce_(states.record().nonce),
      epoch_(states.epoch()) {
  for (const FallbackSlot& each : states.fallback_slots().all()) {
    if (each.slot == epoch_ % 2) fallback_slots_.push_back(each);
  }
}

const std::byte* SpillReader::FindFallbackSlot(ChunkId chunk, uint32_t piece) const {
  for (const FallbackSlot& each : fallback_slots_) {
    if (each.chunk == chunk && each.piece == piece) return each.image();
  }
  return nullptr;
}

Status SpillReader::Read(ChunkId chunk, uint64_t element, std::span<float> values) {
  while (!values.empty()) {
    const auto piece = static_cast<uint32_t>(element / shm::kPieceElements);
    if (chunk != chunk_ || piece != piece_) TP_RETURN_IF_ERROR(Load(chunk, piece));
    const uint64_t first = element % shm::kPieceElements;
    const uint64_t count = std::min<uint64_t>(values.size(), shm::kPieceElements - first);
    CopyMaster(first, values.first(count));
    values = values.subspan(count);
    element += count;
  }
  return Status();
}

Result<std::span<const std::byte>> SpillReader::Piece(ChunkId chunk, uint32_t piece) {
  if (chunk != chunk_ || piece != piece_) TP_RETURN_IF_ERROR(Load(chunk, piece));
  return std::span<const std::byte>(buffer_->bytes()).subspan(nvme::kPieceHeaderBytes);
}

uint64_t SpillReader::PieceElements(ChunkId chunk, uint32_t piece) const {
  return std::min(shm::kPieceElements, spec_->chunks[chunk].elements - piece * shm::kPieceElements);
}

void SpillReader::CopyMaster(uint64_t first, std::span<float> values) const {
  const std::byte* const payload = buffer_->bytes().data() + nvme::kPieceHeaderBytes;
  if (!IsSplit(spec_->StatesOf(chunk_))) {
    std::memcpy(values.data(), payload + first * sizeof(float), values.size_bytes());
    return;
  }
  const auto* const rest = reinterpret_cast<const int16_t*>(payload) + first;
  const uint64_t high_at = shm::SpilledPieceOf(*spec_, chunk_, PieceElements(chunk_, piece_)).high;
  const auto* const high = reinterpret_cast<const uint16_t*>(payload + high_at) + first;
  for (size_t i = 0; i < values.size(); ++i) values[i] = Join(high[i], rest[i]);
}

Status SpillReader::Load(ChunkId chunk, uint32_t piece) {
  if (!buffer_) {
    TP_ASSIGN_OR_RETURN(
        nvme::PageMemory memory,
        nvme::PageMemory::Map(nvme::kPieceHeaderBytes +
                              shm::SpilledPieceBytes(*spec_, kLargestForm, shm::kPieceElements)));
    buffer_.emplace(std::move(memory));
  }

  chunk_ = shm::kNoSpill;
  const SpillPlace& place = states_.saved(chunk).spill;
  const File& file = files_[place.directory];
  const uint64_t offset =
      place.offset + epoch_ % 2 * place.slot_bytes + shm::PieceOffset(*spec_, chunk, piece);
  const nvme::PieceName name{.store = file.store,
                             .job = job_nonce_,
                             .chunk = chunk,
                             .piece = piece,
                             .epoch = epoch_,
                             .place = offset};

  const auto bytes = buffer_->bytes().first(
      nvme::kPieceHeaderBytes + shm::SpilledPieceBytes(*spec_, chunk, PieceElements(chunk, piece)));
  const auto* header = reinterpret_cast<const nvme::PieceHeader*>(bytes.data());
  const auto payload = bytes.subspan(nvme::kPieceHeaderBytes);
  nvme::PieceVerdict verdict;
  for (uint32_t tries = 0; tries < kTriesMax; ++tries) {
    Status read;
    if (const std::byte* const fallback_slot = FindFallbackSlot(chunk, piece)) {
      std::memcpy(bytes.data(), fallback_slot, bytes.size());
    } else {
      read = ReadWhole(file, offset, bytes);
    }

    if (!read.ok() && tries + 1 == kTriesMax) return read;
    verdict = nvme::VerifyPiece(*header, name, payload);
    if (!read.ok() || !verdict.ok()) continue;
    chunk_ = chunk;
    piece_ = piece;
    return Status();
  }

  return Status(ErrorId::kNvmeDataBad,
                "piece " + std::to_string(piece) + " of chunk " + std::to_string(chunk) +
                    " of job " + spec_->name +
                    " cannot be trusted: " + nvme::TextOf(verdict, *header, name));
}

Status SpillReader::ReadWhole(const File& file, uint64_t offset, std::span<std::byte> bytes) const {
  uint64_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        pread(file.fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    // A direct transfer must continue at a page boundary.
    const uint64_t pages = got > 0 ? static_cast<uint64_t>(got) / kPageBytes * kPageBytes : 0;
    if (pages == 0) {
      return Status(ErrorId::kNvmeIoFailed, "states of job " + spec_->name +
                                                " cannot be read at offset " +
                                                std::to_string(offset + done) + ": " +
                                                (got < 0 ? std::strerror(errno) : "the file ends"));
    }
    done += pages;
  }
  return Status();
}

}  // namespace tidepool::memserver
