// RingThroughput: one-way messages a second from one core to another, through the product's
// submission ring, Boost's ring, and the index ring of every textbook; messages of 64 bytes, 1,024
// places each.
//
// One thread calls; the consumer is a thread of its own, on the other of TwoCores.
#pragma once

#include <cstdint>

#include "bench/harness/ping_pong.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// How long it measures.
struct ThroughputOptions {
  uint64_t messages = 2'000'000;  // a round
  uint64_t rounds = 9;
};
// Prints the rows.
void MeasureThroughput(const ThroughputOptions& options, const TwoCores& cores,
                       RowPrinter* printer);

}  // namespace tidepool::bench
