#include "tests/fakes/fake_cuda/world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "tests/fakes/fake_cuda/driver_lock.h"
#include "tests/fakes/fake_cuda/ledger.h"

namespace tidepool::fake_cuda {
namespace {

constexpr uint64_t kDefaultBytes = uint64_t{1} << 30;

std::string Text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

uint64_t Number(const std::string& text, uint64_t otherwise) {
  return text.empty() ? otherwise : std::strtoull(text.c_str(), nullptr, 10);
}

std::vector<std::string> Parts(const std::string& text, char between) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, between);) parts.push_back(part);
  return parts;
}

bool Stays(CudaCode code) {
  return code == 214 || code == 226 || code == kIllegalAddress;
}

}  // namespace

thread_local CUctx_st* current_context = nullptr;

World& World::Get() {
  static auto* const world = new World();
  return *world;
}

World::World() {
  ReadEnvironment();
}

void World::ReadEnvironment() {
  Settings settings;
  const auto gpus =
      static_cast<int>(std::min<uint64_t>(Number(Text("FAKE_CUDA_GPUS"), 1), kGpusMax));
  for (int gpu = 0; gpu < gpus; ++gpu) settings.gpus.push_back(gpu);
  if (std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) {
    settings.gpus.clear();
    for (const std::string& part : Parts(Text("CUDA_VISIBLE_DEVICES"), ',')) {
      const auto gpu = static_cast<int>(Number(part, 0));
      // As the driver: what follows a number that is not there is not shown either.
      if (gpu >= gpus) break;
      settings.gpus.push_back(gpu);
    }
  }
  settings.bytes = Number(Text("FAKE_CUDA_BYTES"), kDefaultBytes);
  settings.context_bytes = Number(Text("FAKE_CUDA_CONTEXT_BYTES"), 0);
  settings.slow_us = static_cast<int64_t>(Number(Text("FAKE_CUDA_SLOW_US"), 0));
  settings.mps = Text("FAKE_CUDA_MPS") == "1";
  for (const std::string& part : Parts(Text("FAKE_CUDA_WITHOUT"), ',')) {
    if (part == "vmm") settings.vmm = false;
    if (part == "ipc") settings.ipc = false;
    if (part == "memops") settings.memops = false;
  }
  settings_ = settings;
  failures_.clear();
  for (const std::string& part : Parts(Text("FAKE_CUDA_FAIL"), ',')) {
    const auto fields = Parts(part, ':');
    if (fields.size() == 3)
      failures_.push_back(
          {fields[0], Number(fields[1], 1), static_cast<CudaCode>(Number(fields[2], 999))});
  }
}

Entry World::Enter(const char* function, Need need) {
  DriverLock::Pass();
  const std::lock_guard lock(mutex_);
  ++calls_[function];
  for (Failure& failure : failures_) {
    if (failure.function != function || failure.calls_left == 0 || --failure.calls_left > 0)
      continue;
    if (Stays(failure.code)) SetBroken(failure.code);
    return {failure.code};
  }
  if (need == Need::kNothing) return {};
  if (initialized_in_ != getpid()) return {kNotInitialized};
  if (broken_ != device::kCudaSuccess) return {broken_};
  if (need == Need::kContext && current_context == nullptr) return {device::kCudaInvalidContext};
  return {};
}

CudaCode World::Init() {
  const std::lock_guard lock(mutex_);
  if (initialized_in_ != 0 && initialized_in_ != getpid()) return kNotInitialized;
  if (settings_.gpus.empty()) return device::kCudaNoDevice;
  initialized_in_ = getpid();
  max_connections_ = Text("CUDA_DEVICE_MAX_CONNECTIONS");
  return device::kCudaSuccess;
}

Settings World::settings() const {
  const std::lock_guard lock(mutex_);
  return settings_;
}

void World::SetBroken(CudaCode code) {
  if (broken_ != device::kCudaSuccess) return;
  broken_ = code;
  ++breaks_;
}

void World::Break(CudaCode code, uint64_t breaks) {
  const std::lock_guard lock(mutex_);
  if (breaks == breaks_) SetBroken(code);
}

uint64_t World::breaks() const {
  const std::lock_guard lock(mutex_);
  return breaks_;
}

CudaCode World::broken() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

CUctx_st* World::Retain(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(ordinal);
  if (held_[index] == 0 && !TakeLocked(settings_.gpus[index], settings_.context_bytes))
    return nullptr;
  ++held_[index];
  return reinterpret_cast<CUctx_st*>(&held_[static_cast<size_t>(ordinal)]);
}

void World::Release(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(ordinal);
  if (--held_[index] == 0) GiveLocked(settings_.gpus[index], settings_.context_bytes);
}

bool World::Holds(const CUctx_st* context) const {
  const std::lock_guard lock(mutex_);
  return *reinterpret_cast<const uint64_t*>(context) > 0;
}

int World::OrdinalOf(const CUctx_st* context) const {
  return static_cast<int>(reinterpret_cast<const uint64_t*>(context) - held_.data());
}

uint64_t World::contexts() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint64_t>(
      std::count_if(held_.begin(), held_.end(), [](uint64_t held) { return held > 0; }));
}

bool World::Take(int gpu, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return TakeLocked(gpu, bytes);
}

bool World::TakeLocked(int gpu, uint64_t bytes) {
  if (Ledger::Get() != nullptr) return Ledger::Get()->Take(gpu, bytes, settings_.bytes);
  uint64_t& taken = taken_[static_cast<size_t>(gpu)];
  if (bytes > settings_.bytes || taken > settings_.bytes - bytes) return false;
  taken += bytes;
  return true;
}

void World::Give(int gpu, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  GiveLocked(gpu, bytes);
}

void World::GiveLocked(int gpu, uint64_t bytes) {
  if (Ledger::Get() != nullptr) return Ledger::Get()->Give(gpu, bytes);
  taken_[static_cast<size_t>(gpu)] -= bytes;
}

uint64_t World::Taken(int gpu) const {
  if (Ledger::Get() != nullptr) return Ledger::Get()->Taken(gpu);
  const std::lock_guard lock(mutex_);
  return taken_[static_cast<size_t>(gpu)];
}

void World::Reset() {
  const std::lock_guard lock(mutex_);
  ReadEnvironment();
  calls_.clear();
  broken_ = device::kCudaSuccess;
  ++breaks_;
}

void World::FailAt(const std::string& function, uint64_t k, CudaCode code) {
  const std::lock_guard lock(mutex_);
  failures_.push_back({function, k, code});
}

uint64_t World::Calls(const std::string& function) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

std::string World::max_connections() const {
  const std::lock_guard lock(mutex_);
  return max_connections_;
}

int CurrentOrdinal() {
  return World::Get().OrdinalOf(current_context);
}

int CurrentGpu() {
  return World::Get().settings().gpus[static_cast<size_t>(CurrentOrdinal())];
}

}  // namespace tidepool::fake_cuda
