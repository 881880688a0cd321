#include "trainer/comm/meeting/rendezvous.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace tidepool::trainer {
namespace {

// Leaves `out` alone when the variable is not set.
Status ReadNumber(const char* name, uint64_t max, uint64_t* out) {
  const char* text = std::getenv(name);
  if (text == nullptr) return {};
  const std::string_view view(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);

  if (error != std::errc() || end != view.data() + view.size() || value > max) {
    return Status(ErrorId::kUsageError, "the environment variable " + std::string(name) + " is '" +
                                            text + "', not a number of 0 to " + std::to_string(max))
        .Fix("start the ranks with torchrun or `trainer launch`, which set it");
  }
  *out = value;
  return {};
}

Status Missing(const char* name) {
  return Status(ErrorId::kUsageError,
                "WORLD_SIZE asks for several ranks, but the environment variable " +
                    std::string(name) + " is not set")
      .Fix("start the ranks with torchrun or `trainer launch`, which set it");
}

}  // namespace

Result<Rendezvous> RendezvousFromEnv() {
  constexpr uint64_t kMaxRanks = 65536;
  uint64_t rank = 0, world = 1, local_rank = 0, local_world = 1, port = 0, restarts = 0;
  TP_RETURN_IF_ERROR(ReadNumber("WORLD_SIZE", kMaxRanks, &world));
  TP_RETURN_IF_ERROR(ReadNumber("RANK", kMaxRanks, &rank));
  local_rank = rank;
  local_world = world;
  TP_RETURN_IF_ERROR(ReadNumber("LOCAL_RANK", kMaxRanks, &local_rank));
  TP_RETURN_IF_ERROR(ReadNumber("LOCAL_WORLD_SIZE", kMaxRanks, &local_world));
  TP_RETURN_IF_ERROR(ReadNumber("MASTER_PORT", 65535, &port));
  TP_RETURN_IF_ERROR(ReadNumber("TORCHELASTIC_RESTART_COUNT", kMaxRanks, &restarts));

  if (world == 0 || rank >= world || local_world == 0 || local_rank >= local_world) {
    return Status(ErrorId::kUsageError,
                  "RANK " + std::to_string(rank) + " of WORLD_SIZE " + std::to_string(world) +
                      " (LOCAL_RANK " + std::to_string(local_rank) + " of LOCAL_WORLD_SIZE " +
                      std::to_string(local_world) + ") is not a rank of that many")
        .Fix("ranks count from 0 to WORLD_SIZE - 1; let torchrun or `trainer launch` set them");
  }

  Rendezvous meet;
  meet.rank = static_cast<uint32_t>(rank);
  meet.world = static_cast<uint32_t>(world);
  meet.local_rank = static_cast<uint32_t>(local_rank);
  meet.local_world = static_cast<uint32_t>(local_world);
  meet.port = static_cast<uint16_t>(port);

  if (world > 1) {
    if (std::getenv("RANK") == nullptr) return Missing("RANK");
    if (std::getenv("MASTER_ADDR") == nullptr) return Missing("MASTER_ADDR");
    if (port == 0) return Missing("MASTER_PORT");
    meet.host = std::getenv("MASTER_ADDR");
  }
  // torchrun's agent keeps the port open over all restarts of the ranks.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool agent_serves = agent != nullptr && std::string_view(agent) == "True";
  meet.serves_store = rank == 0 && !agent_serves;
  if (agent_serves) meet.prefix = "tidepool/attempt_" + std::to_string(restarts);
  return meet;
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace tidepool::trainer
