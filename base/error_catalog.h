// The catalogue of every error that Tidepool can show: a stable number, a short name, the class that callers branch on, the exit code of
// a program that ends with it, and one line of standing advice. docs/errors.md is checked against this table by a test.
//
// Any thread. The table is constant. To add an error, add one line to TIDEPOOL_ERRORS and one section to docs/errors.md.
#pragma once

#include <cstdint>
#include <span>

namespace tidepool {

// What a caller can do about it; nine classes, as few as callers need.
enum class Code : uint8_t {
  kOk,           // no error
  kInvalid,      // the input is wrong: fix it and try again
  kNotFound,     // a named thing does not exist
  kRefused,      // the request is sound, but there is no room or no right
  kUnavailable,  // a peer is gone or not there yet
  kTimeout,      // a wait ended without its event
  kCorrupt,      // bytes are not what they must be
  kVersion,      // two sides speak different versions
  kIo,           // the operating system refused or failed
};

// Exit codes of all programs (documented in docs/errors.md).
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoServer = 3;
inline constexpr int kExitNotFound = 4;
inline constexpr int kExitRefused = 5;
inline constexpr int kExitTimeout = 6;
inline constexpr int kExitCorrupt = 7;
inline constexpr int kExitVersion = 8;
inline constexpr int kExitHostUnfit = 9;
inline constexpr int kExitDeviceMemory = 20;
inline constexpr int kExitHostMemory = 21;
inline constexpr int kExitNonFinite = 22;
inline constexpr int kExitJobKept = 75;  // the job is kept, a restart continues it

// X(name, number, code, exit code, standing advice). Numbers: 1 usage and configuration, 2 host and pool, 3 protocol and sessions,
// 4 trainer memory and cache, 5 data and files, 6 training, 9 internal.
#define TIDEPOOL_ERRORS(X)                                                                                                                \
  X(UsageError, 1001, kInvalid, kExitUsage, "run the program with --help to see its flags")                                               \
  X(ConfigUnreadable, 1101, kIo, kExitUsage, "check the path and the permissions of the configuration file")                              \
  X(ConfigSyntax, 1102, kInvalid, kExitUsage, "correct the line named above; `memserver config --defaults` prints a valid file")          \
  X(ConfigUnknownKey, 1103, kInvalid, kExitUsage, "remove the key or use the one suggested; `memserver config --defaults` lists all")     \
  X(ConfigBadValue, 1104, kInvalid, kExitUsage, "give a value of the kind named above")                                                   \
  X(ConfigNeedsRestart, 1105, kRefused, kExitRefused, "take the change back, or restart memserver: its jobs go on")                       \
  X(HostMemoryShort, 2001, kRefused, kExitHostMemory, "give a smaller --pool, or free memory (limits of the cgroup count)")               \
  X(MemoryMapFailed, 2002, kIo, kExitHostMemory, "check `ulimit -v`, free memory and the cgroup limit")                                   \
  X(SocketInUse, 2003, kRefused, kExitFailed, "stop the other memserver, or give another --socket-dir")                                   \
  X(SocketFailed, 2004, kIo, kExitFailed, "check that the socket directory exists, is yours and has a short path")                        \
  X(KeeperFailed, 2005, kIo, kExitFailed, "see the lines of the process tp-keeper in the log; end it, or start with --keeper none")       \
  X(KeptLayoutUnknown, 2006, kVersion, kExitVersion, "start the memserver release that made it, or give its jobs up with --discard-kept") \
  X(KeptMemoryBad, 2007, kCorrupt, kExitCorrupt, "its jobs cannot go on; start them again from saved weights")                            \
  X(PoolFull, 2101, kRefused, kExitRefused, "give memserver a larger --pool, end another job, or see `memctl ps`")                        \
  X(RcacheRefused, 2102, kRefused, kExitRefused, "ask for a smaller --rcache, or give memserver a larger --rcache-limit")                 \
  X(TooManySessions, 2103, kRefused, kExitRefused, "end another job, or raise `limits` in the configuration")                             \
  X(QuotaExceeded, 2104, kRefused, kExitRefused, "end another job of the account, or ask an operator for `memctl job quota`")             \
  X(QuotaRefused, 2105, kRefused, kExitRefused, "guarantee less, or wait until jobs have ended; `memctl ps` lists what they hold")        \
  X(NvmeRingDenied, 2201, kIo, kExitFailed,                                                                                               \
    "allow io_uring (kernel.io_uring_disabled, seccomp profile of the container); threads serve meanwhile")                               \
  X(NvmeDirectoryBad, 2202, kRefused, kExitFailed,                                                                                        \
    "give an existing directory of your own, mode 0700, without symbolic links in its path")                                              \
  X(NvmeInUse, 2203, kRefused, kExitFailed, "stop the other memserver, or give another --nvme directory")                                 \
  X(NvmeSpaceShort, 2204, kRefused, kExitRefused, "give a smaller --nvme size, or free space on that file system")                        \
  X(NvmeFull, 2205, kRefused, kExitRefused, "give memserver a larger --nvme, end another job, or use --states-on host")                   \
  X(NvmeIoFailed, 2206, kIo, kExitFailed, "look at the kernel log for this device; start the job again from saved weights")               \
  X(NvmeDataBad, 2207, kCorrupt, kExitCorrupt, "the device or the file lost data; start the job again from saved weights")                \
  X(NvmeManifestBad, 2208, kCorrupt, kExitCorrupt, "the directory was damaged; its jobs cannot go on")                                    \
  X(NvmeDirectoryMissing, 2209, kRefused, kExitFailed,                                                                                    \
    "give all --nvme directories of the server before, in the same order, or give its jobs up with --discard-kept")                       \
  X(NvmeStalled, 2210, kIo, kExitFailed,                                                                                                  \
    "look at the kernel log for this device; start the job again from saved weights, in another --nvme directory")                        \
  X(NoServer, 3001, kUnavailable, kExitNoServer, "start one with `memserver run`, or use `trainer run --standalone`")                     \
  X(AbiMismatch, 3002, kVersion, kExitVersion, "install memserver and trainer of the same release")                                       \
  X(HandshakeBad, 3003, kInvalid, kExitFailed, "the peer does not speak this protocol; check what connects to this socket")               \
  X(JobSpecBad, 3004, kInvalid, kExitFailed, "the trainer described its job wrongly; report this with the text above")                    \
  X(JobMismatch, 3005, kRefused, kExitRefused, "start all ranks with the same flags, or choose another --job name")                       \
  X(RankTaken, 3006, kRefused, kExitRefused, "each rank may attach once; choose another --job name for a second run")                     \
  X(NotOwner, 3007, kRefused, kExitRefused, "attach as the user who owns the job or the socket")                                          \
  X(SessionEnded, 3008, kUnavailable, kExitFailed, "the server ended this session; its log names the cause")                              \
  X(ServerGone, 3009, kUnavailable, kExitJobKept,                                                                                         \
    "see the memserver log; where its keeper lives, run the same command with --resume auto")                                             \
  X(ProtocolViolation, 3010, kInvalid, kExitFailed, "a request in the ring was malformed; report this with the text above")               \
  X(WaitTimeout, 3011, kTimeout, kExitTimeout, "the other side did not answer in time; raise --timeout or look at its log")               \
  X(PeerLost, 3012, kUnavailable, kExitFailed, "another rank of the job ended; see its output")                                           \
  X(RankCountMismatch, 3013, kRefused, kExitRefused, "start exactly as many ranks as the job was made for")                               \
  X(StatesLost, 3014, kUnavailable, kExitCorrupt, "memserver and its keeper ended together; start the job again")                         \
  X(VersionGone, 3015, kUnavailable, kExitFailed, "the step that these parameters belong to had ended; fetch the next version")           \
  X(JobBusy, 3016, kRefused, kExitRefused, "end its ranks first, or say that they are to be ended (--force)")                             \
  X(ChunkFrozen, 3017, kRefused, kExitFailed, "frozen chunks are read only; change the chunks that the job trains")                       \
  X(UploadLost, 3018, kRefused, kExitFailed, "claim the chunk again, and put it from its start where it is not there by then")            \
  X(ContentMismatch, 3019, kCorrupt, kExitCorrupt, "hash the bytes that are put (`b2sum -l 256`), or put those that were hashed")         \
  X(AdminNotFound, 3101, kNotFound, kExitNotFound, "`memctl ps` lists the jobs; docs/admin_api.md lists the paths")                       \
  X(AdminBadRequest, 3102, kInvalid, kExitUsage, "correct the request; docs/admin_api.md shows each path and its parameters")             \
  X(NotReady, 3103, kUnavailable, kExitFailed, "wait until memserver is ready (`memctl wait-ready`), or look at its log")                 \
  X(RcacheTooSmall, 4001, kRefused, kExitDeviceMemory, "raise --rcache to at least the size named above")                                 \
  X(ParameterTooLarge, 4002, kInvalid, kExitUsage, "raise --chunk-size to at least the largest parameter")                                \
  X(TensorStateIllegal, 4003, kInvalid, kExitFailed, "declare the parameter as used several times, or report this model")                 \
  X(ChunkNotReady, 4004, kInvalid, kExitFailed, "a chunk was used outside a step; report this model")                                     \
  X(FileUnreadable, 5001, kIo, kExitNotFound, "check the path and its permissions")                                                       \
  X(DataBad, 5002, kInvalid, kExitUsage, "give a text file or directory, or a token file of llm.c or nanoGPT")                            \
  X(SafetensorsBad, 5003, kCorrupt, kExitCorrupt, "the file is damaged or not safetensors; write it again")                               \
  X(SaveFailed, 5004, kIo, kExitFailed, "check free space and permissions of the directory; the former file is kept")                     \
  X(FileWriteFailed, 5005, kIo, kExitFailed, "check free space and permissions")                                                          \
  X(NonFinite, 6001, kCorrupt, kExitNonFinite, "lower the learning rate, use warm-up or clipping, or --dtype fp32")                       \
  X(CollectiveFailed, 6002, kUnavailable, kExitFailed, "see the output of the other ranks; check MASTER_ADDR and MASTER_PORT")            \
  X(StepAbandoned, 6003, kUnavailable, kExitFailed, "the step was not sealed; the cause stands above")                                    \
  X(RanksMissing, 6004, kTimeout, kExitJobKept, "see why the missing ranks ended, then start all ranks again")                            \
  X(LibraryFailed, 9001, kInvalid, kExitFailed, "an error inside a library; report this with the text above")                             \
  X(Internal, 9002, kInvalid, kExitFailed, "a bug in Tidepool; report this with the text above")

enum class ErrorId : uint16_t {
  kNone = 0,
#define TIDEPOOL_ERROR_ENUM(name, number, code, exit, advice) k##name = number,
  TIDEPOOL_ERRORS(TIDEPOOL_ERROR_ENUM)
#undef TIDEPOOL_ERROR_ENUM
};

struct ErrorEntry {
  ErrorId id;
  const char* name;  // "PoolFull"
  Code code;
  int exit_code;
  const char* advice;  // one line, no full stop
};

// The whole table, in order of number.
std::span<const ErrorEntry> ErrorCatalog();
// The entry of `id`; kInternal's for an unknown number (a peer may send any).
const ErrorEntry& ErrorEntryOf(ErrorId id);

}  // namespace tidepool
