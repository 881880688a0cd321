// GiveBackPages: returns memory to the system while its addresses stay mapped.
//
// Any thread.
#pragma once

#include <cstdint>

namespace tidepool {

// Frees the pages of a shared mapping of memory (a memfd): they take no memory, and read as zeros,
// in all processes, until they are written again. Pages are whole: `data` and `bytes` are multiples
// of a page. False: the system cannot do it, and nothing has changed.
bool GiveBackPages(void* data, uint64_t bytes);

}  // namespace tidepool
