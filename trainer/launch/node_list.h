// Slurm's short forms: lists of nodes and of tasks on each node.
//
// Any thread; pure functions over another program's output, which is not trusted: text that is not
// understood gives an empty result.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tidepool::trainer {

// The first name of a list like "gpu[007-010,12],login1" ("gpu007"); empty if the list is empty or
// malformed.
std::string FirstNode(std::string_view list);

// Tasks on node `index` in a list like "4(x3),2" (4 on nodes 0 to 2, 2 on node 3); 0 if the list is
// malformed or too short.
uint64_t TasksOnNode(std::string_view list, uint64_t index);

}  // namespace tidepool::trainer
