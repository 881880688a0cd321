#include "bench/pipeline/paced_links.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tidepool::bench {

PacedLinks::PacedLinks(const std::vector<double>& bytes_per_ns, Clock* clock) : clock_(clock) {
  for (const double rate : bytes_per_ns) {
    for (int way = 0; way < 2; ++way) {
      links_.push_back(std::make_unique<Link>());
      links_.back()->bytes_per_ns = rate;
    }
  }
  for (const auto& link : links_) link->thread = std::thread([this, &link] { Serve(link.get()); });
}

PacedLinks::~PacedLinks() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  for (const auto& link : links_) link->wakes.notify_all();
  for (const auto& link : links_) link->thread.join();
}

uint64_t PacedLinks::Start(LinkCopy copy) {
  Link& link = *links_[size_t{2} * copy.complex + (copy.up ? 0 : 1)];
  const std::lock_guard lock(mutex_);
  const uint64_t number = ++last_;
  open_.insert(number);

  Waiting waiting{.awaited_at = link.begun + copy.uses_ahead * copy.bytes,
                  .number = number,
                  .asked_ns = clock_->NowNs(),
                  .copy = std::move(copy)};
  link.waiting.insert(std::move(waiting));
  link.wakes.notify_one();
  return number;
}

bool PacedLinks::Ended(uint64_t copy) {
  const std::lock_guard lock(mutex_);
  return open_.count(copy) == 0;
}

void PacedLinks::Wait(uint64_t copy) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return open_.count(copy) == 0; });
}

std::vector<CopyRecord> PacedLinks::TakeRecords() {
  const std::lock_guard lock(mutex_);
  return std::exchange(records_, {});
}

void PacedLinks::Serve(Link* link) {
  std::unique_lock lock(mutex_);
  for (;;) {
    link->wakes.wait(lock, [&] { return stops_ || !link->waiting.empty(); });
    if (stops_) return;
    CopyOne(link, &lock);
  }
}

void PacedLinks::CopyOne(Link* link, std::unique_lock<std::mutex>* lock) {
  const Waiting next = std::move(link->waiting.extract(link->waiting.begin()).value());
  const LinkCopy& copy = next.copy;
  link->begun += copy.bytes;
  CopyRecord record{.gpu = copy.gpu, .complex = copy.complex, .up = copy.up, .bytes = copy.bytes};
  record.asked_ns = next.asked_ns;
  record.start_ns = std::max(next.asked_ns, link->free_ns);
  const double takes_ns = static_cast<double>(copy.bytes) / link->bytes_per_ns;
  record.end_ns = record.start_ns + static_cast<int64_t>(std::ceil(takes_ns));
  link->free_ns = record.end_ns;

  lock->unlock();
  std::memcpy(copy.to, copy.from, copy.bytes);
  const int64_t left_ns = record.end_ns - clock_->NowNs();
  if (left_ns > 0) clock_->SleepNs(left_ns);

  lock->lock();
  records_.push_back(record);
  open_.erase(next.number);
  ended_.notify_all();
  if (!copy.then) return;
  lock->unlock();
  copy.then();
  lock->lock();
}

}  // namespace tidepool::bench
