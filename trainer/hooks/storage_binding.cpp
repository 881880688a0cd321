#include "trainer/hooks/storage_binding.h"

#include <sys/mman.h>

#include <algorithm>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>

#include "base/units.h"

namespace tidepool::trainer {
namespace {

constexpr const char* kAway =
    "the values of this parameter are at the memory server, and are brought for operators alone: "
    "copy it first, with an operator (Tensor::clone) or with tidepool.gathered()";
constexpr const char* kReadOnly =
    "the values of this parameter are the memory server's, and a write to their copy here would be "
    "lost: change weights before the job begins, or a copy (Tensor::clone, tidepool.gathered())";
constexpr const char* kEnded =
    "the job of this parameter has been closed or left, and its values with it: copy or save them "
    "before";
constexpr const char* kForked =
    "parameters are with the process that trains, and this one was forked from it: give workers "
    "(a DataLoader's too) what they need before, or start them with \"spawn\"";

// LibTorch lets a storage refuse its memory (FakeTensor does so) but cannot undo it. An explicit
// instantiation may name another class's private members.
template <bool c10::StorageImpl::*kThrows, bool c10::StorageImpl::*kChecks>
struct Refusals {
  friend void SetRefusal(c10::StorageImpl* storage, bool on) {
    storage->*kThrows = on;
    storage->*kChecks = on;
  }
};
void SetRefusal(c10::StorageImpl* storage, bool on);
template struct Refusals<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                         &c10::StorageImpl::has_mutable_data_ptr_check_>;

}  // namespace

struct StorageBinding::State {
  // Pages of one kind, unmapped on destruction.
  class Pages {
   public:
    static Result<std::unique_ptr<Pages>> Map(uint64_t bytes, int protection) {
      void* address =
          mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (address == MAP_FAILED) {
        return Status(ErrorId::kMemoryMapFailed, "cannot reserve " + FormatBytes(bytes) +
                                                     " of address space for evicted parameters");
      }
      return std::make_unique<Pages>(address, bytes);
    }
    Pages(void* address, uint64_t bytes) : address_(address), bytes_(bytes) {}
    ~Pages() { munmap(address_, bytes_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    void* address() const { return address_; }

   private:
    void* address_;
    uint64_t bytes_;
  };
  struct Start {
    uint64_t byte;
    uint32_t parameter;
  };
  c10::Device device{c10::DeviceType::CPU};  // of all parameters
  // PROT_NONE: the target of absent parameters.
  std::unique_ptr<Pages> fault;
  // Readable and writable, untouched before a failure.
  std::unique_ptr<Pages> host_spare;
  // The same on a device, which has no demand paging.
  at::Tensor device_spare;
  std::vector<c10::Storage> storages;                           // by ChunkId
  std::vector<bool> placed;                                     // by ChunkId
  std::vector<at::Tensor> tensors;                              // by parameter
  std::unordered_map<const c10::StorageImpl*, ChunkId> chunks;  // reverse lookup
  std::vector<std::vector<Start>> starts;                       // by ChunkId, ascending
  std::vector<ChunkId> chunk_of;                                // by parameter
};

StorageBinding::StorageBinding(std::unique_ptr<State> state) : state_(std::move(state)) {}
StorageBinding::~StorageBinding() {
  if (!state_) return;
  for (const c10::Storage& storage : state_->storages) {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, state_->device));
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(kEnded);
  }
}

namespace {

Status CheckFits(const at::Tensor& tensor, c10::Device device, const BoundParameter& place,
                 const std::vector<uint64_t>& chunk_bytes) {
  if (tensor.device() != device || !tensor.is_contiguous() || !tensor.has_storage()) {
    return Status(ErrorId::kInternal, "only dense contiguous parameters of the run's device (" +
                                          device.str() + ") can be bound to chunks, not one of " +
                                          tensor.device().str());
  }

  const uint64_t end = place.byte_begin + tensor.nbytes();
  if (place.chunk >= chunk_bytes.size() || end > chunk_bytes[place.chunk] ||
      place.byte_begin % tensor.element_size() != 0) {
    return Status(ErrorId::kInternal, "a parameter ends at byte " + std::to_string(end) +
                                          " beyond its chunk " + std::to_string(place.chunk));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<StorageBinding>> StorageBinding::Bind(
    const std::vector<uint64_t>& chunk_bytes, const std::vector<at::Tensor>& tensors,
    const std::vector<BoundParameter>& places) {
  auto state = std::make_unique<State>();
  const uint64_t largest =
      RoundUp(chunk_bytes.empty() ? 1 : *std::max_element(chunk_bytes.begin(), chunk_bytes.end()),
              kPageBytes);
  if (!tensors.empty()) state->device = tensors.front().device();

  TP_ASSIGN_OR_RETURN(state->fault, State::Pages::Map(largest, PROT_NONE));
  if (state->device.is_cpu()) {
    TP_ASSIGN_OR_RETURN(state->host_spare, State::Pages::Map(largest, PROT_READ | PROT_WRITE));
  } else {
    // Allocated now: after a failure there may be no memory left.
    state->device_spare = at::zeros({static_cast<int64_t>(largest)},
                                    at::TensorOptions().dtype(at::kByte).device(state->device));
  }

  state->starts.resize(chunk_bytes.size());
  state->placed.resize(chunk_bytes.size(), false);
  state->tensors = tensors;
  for (ChunkId chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    // No allocator and not resizable: LibTorch can never move or grow it.
    state->storages.emplace_back(c10::Storage::use_byte_size_t(), chunk_bytes[chunk],
                                 at::DataPtr(state->fault->address(), state->device), nullptr,
                                 /*resizable=*/false);
    state->storages.back()
        .unsafeGetStorageImpl()
        ->release_data_and_set_meta_custom_data_ptr_error_msg_(kAway);
    state->chunks.emplace(state->storages.back().unsafeGetStorageImpl(), chunk);
  }

  for (size_t i = 0; i < tensors.size(); ++i) {
    TP_RETURN_IF_ERROR(CheckFits(tensors[i], state->device, places[i], chunk_bytes));
    at::TensorImpl* impl = tensors[i].unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(state->storages[places[i].chunk]);
    impl->set_storage_offset(
        static_cast<int64_t>(places[i].byte_begin / tensors[i].element_size()));
    state->starts[places[i].chunk].push_back({places[i].byte_begin, static_cast<uint32_t>(i)});
    state->chunk_of.push_back(places[i].chunk);
  }

  for (auto& starts : state->starts)
    std::sort(starts.begin(), starts.end(),
              [](const auto& a, const auto& b) { return a.byte < b.byte; });
  return std::unique_ptr<StorageBinding>(new StorageBinding(std::move(state)));
}

void StorageBinding::Place(ChunkId chunk, std::byte* block) {
  void* address = block != nullptr ? static_cast<void*>(block) : state_->fault->address();
  c10::StorageImpl* storage = state_->storages[chunk].unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(address, state_->device));
  state_->placed[chunk] = block != nullptr;
  SetRefusal(storage, block == nullptr);
}

void StorageBinding::PlaceSpare(ChunkId chunk) {
  void* spare = state_->host_spare != nullptr ? state_->host_spare->address()
                                              : state_->device_spare.mutable_data_ptr();
  Place(chunk, static_cast<std::byte*>(spare));
}

void StorageBinding::RefuseWrite(ChunkId chunk) {
  state_->storages[chunk]
      .unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(kReadOnly);
}

void StorageBinding::AdmitWrite(ChunkId chunk) {
  c10::StorageImpl* storage = state_->storages[chunk].unsafeGetStorageImpl();
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(kAway);
  SetRefusal(storage, !state_->placed[chunk]);
}

void StorageBinding::RefuseForked() {
  for (const c10::Storage& storage : state_->storages)
    storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(kForked);
}

uint32_t StorageBinding::Unbound() const {
  for (uint32_t i = 0; i < state_->tensors.size(); ++i) {
    const at::TensorImpl* impl = state_->tensors[i].unsafeGetTensorImpl();
    if (impl->unsafe_storage().unsafeGetStorageImpl() !=
        state_->storages[state_->chunk_of[i]].unsafeGetStorageImpl())
      return i;
  }
  return kNoParameter;
}

uint32_t StorageBinding::ParameterOf(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return kNoParameter;
  const auto found =
      state_->chunks.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (found == state_->chunks.end()) return kNoParameter;
  // The offset counts elements of the tensor, which may be a view with another dtype.
  const uint64_t byte =
      static_cast<uint64_t>(tensor.storage_offset()) * static_cast<uint64_t>(tensor.element_size());
  const std::vector<State::Start>& starts = state_->starts[found->second];
  const auto behind =
      std::upper_bound(starts.begin() + 1, starts.end(), byte,
                       [](uint64_t at, const State::Start& start) { return at < start.byte; });
  return std::prev(behind)->parameter;
}

ChunkId StorageBinding::ChunkOf(uint32_t parameter) const {
  return state_->chunk_of[parameter];
}

uint32_t StorageBinding::parameters() const {
  return static_cast<uint32_t>(state_->chunk_of.size());
}

uint32_t StorageBinding::chunks() const {
  return static_cast<uint32_t>(state_->storages.size());
}

}  // namespace tidepool::trainer
