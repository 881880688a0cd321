// RingThroughput: one-way messages per second from one core to another, through the product's
// submission ring, Boost's ring, and a textbook index ring; messages of 64 bytes, 1,024 slots each.
//
// One thread calls; the consumer is a separate thread, on the other CPU of TwoCores.
#pragma once

#include <cstdint>

#include "bench/harness/ping_pong.h"
#include "bench/harness/row.h"

namespace tidepool::bench {

// The length of the measurement.
struct ThroughputOptions {
  uint64_t messages = 2'000'000;  // per round
  uint64_t rounds = 9;
};
// Prints the rows.
void MeasureThroughput(const ThroughputOptions& options, const TwoCores& cores,
                       RowPrinter* printer);

}  // namespace tidepool::bench
