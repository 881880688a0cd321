// The beginning of `memctl --help`.
#pragma once

namespace tidepool::client {

inline constexpr const char* kHelpText = R"(memctl looks into a running memserver.

Examples:
  memctl status                          one screen: state, pool, jobs, bytes moved
  memctl ps                              the jobs and their ranks
  memctl residency --watch               which chunk is where, every second; --by layer|expert|tensor|job instead of chunks
  memctl chunks --job gpt --state updating
  memctl tensors h.3.attn.c_attn         where a parameter lies; memctl chunk 7 --job gpt: what lies in a chunk
  memctl quotas                          who may have how much of the pool, and who waits for room
  memctl job quota gpt --limit 100GiB --weight 2
  memctl job release gpt --dry-run       what that would do, in bytes; nothing is changed
  memctl job release gpt --force --yes   give its memory back, and end its ranks; without --yes a person at a terminal is asked
  memctl drain                           no new jobs; those that are there go on; --wait 1h: until they have ended
  memctl --node a,b,c status             other machines over ssh, a line each
  memctl top                             what moves: bytes, updates and steps a second
  memctl events -f                       what memserver logs, as it comes
  memctl report run.html --for 1min      a minute of the run as one page; with --metrics DIR/metrics.jsonl also what the trainer knows
  memctl record run.rec --for 1min       keep it; report, timeline and residency read it with --from run.rec
  memctl timeline step.json --step last  the last step alone, for ui.perfetto.dev
  memctl page                            the same live, in a browser on this machine
  memctl doctor                          what is wrong, and what to do; memctl explain TP2101: about one error
  memctl config diff                     settings that are not the default; memctl config reload reads the file again
  memctl nvme status                     the NVMe directories, and the last check of what lies there; nvme tune: which blocks suit them
  memctl checkpoint verify runs/a        every byte of the checkpoints of a run; list, diff and prune --keep N
  memctl snapshot gpt --to runs/gpt      all states of a job as a checkpoint, while it trains or when its ranks are gone
  memctl topo --xml machine.xml          where pool and workers would lie on another machine (lstopo --of xml machine.xml)
  memctl wait-ready --timeout 30s        for scripts: returns when memserver serves
  memctl -o json status | jq .pool       the same numbers for programs; -o jsonl: a line a row, -o yaml
  memctl api GET /v1/jobs/gpt            any path of docs/admin_api.md

Exit codes: 0 done, 2 wrong use, 3 no memserver, 4 not found, 5 refused, 6 timed out, 7 damaged, 9 something is wrong (doctor), 1 other errors;
of health: 0 all is well, 1 warnings, 2 errors. With --node the highest of all machines.
)";

}  // namespace tidepool::client
