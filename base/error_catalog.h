// The catalogue of every error that Tidepool can show: a stable number, a short name, the class
// that callers branch on, the exit code of a program that ends with it, its meaning, and one line
// of standing advice. The tables of docs/errors.md are generated from it.
//
// Any thread. The table is constant. To add an error, add one entry to TIDEPOOL_ERRORS and run
// scripts/errors_page.py.
#pragma once

#include <cstdint>
#include <span>

namespace tidepool {

// What a caller can do about an error; nine classes, as few as callers need.
enum class Code : uint8_t {
  kOk,           // no error
  kInvalid,      // the input is wrong: fix it and try again
  kNotFound,     // a named thing does not exist
  kRefused,      // the request is sound, but there is no room or no right
  kUnavailable,  // a peer is gone or not there yet
  kTimeout,      // a wait ended without its event
  kCorrupt,      // bytes are damaged
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

// X(name, number, code, exit code, what it means, standing advice). Numbers: 1 usage and
// configuration, 2 host and pool, 3 protocol and sessions, 4 trainer memory and cache, 5 data and
// files, 6 training, 9 internal.
#define TIDEPOOL_ERRORS(X)                                                                         \
  X(UsageError, 1001, kInvalid, kExitUsage,                                                        \
    "A flag, an argument or a combination of them is not understood.",                             \
    "run the program with --help to see its flags")                                                \
  X(ConfigUnreadable, 1101, kIo, kExitUsage, "The configuration file cannot be opened or read.",   \
    "check the path and the permissions of the configuration file")                                \
  X(ConfigSyntax, 1102, kInvalid, kExitUsage,                                                      \
    "The configuration file is not valid TOML at the line named.",                                 \
    "correct the line named above; `memserver config --defaults` prints a valid file")             \
  X(ConfigUnknownKey, 1103, kInvalid, kExitUsage,                                                  \
    "The configuration file has a key that no release knows; nothing is ever ignored silently.",   \
    "remove the key or use the one suggested; `memserver config --defaults` lists all")            \
  X(ConfigBadValue, 1104, kInvalid, kExitUsage,                                                    \
    "A size, share, duration or other value is not of the kind its key or flag asks for.",         \
    "give a value of the kind named above")                                                        \
  X(ConfigNeedsRestart, 1105, kRefused, kExitRefused,                                              \
    "The configuration that was read again changes a setting that a memserver which runs cannot "  \
    "change; nothing of it was applied.",                                                          \
    "take the change back, or restart memserver: its jobs go on")                                  \
  X(HostMemoryShort, 2001, kRefused, kExitHostMemory,                                              \
    "The pool asked for is larger than what the machine and its cgroups have left; found before "  \
    "any page is touched. Or the system "                                                          \
    "refused the process a few bytes or a descriptor for itself: it ends at once, memserver's "    \
    "keeper starts it again, and no job loses a "                                                  \
    "step.",                                                                                       \
    "give a smaller --pool, or free memory (limits of the cgroup count)")                          \
  X(MemoryMapFailed, 2002, kIo, kExitHostMemory,                                                   \
    "The system refused to make, size, seal or map memory.",                                       \
    "check `ulimit -v`, `ulimit -f` (shared memory counts) and the cgroup limit; free memory")     \
  X(SocketInUse, 2003, kRefused, kExitFailed,                                                      \
    "Another memserver already listens in this socket directory.",                                 \
    "stop the other memserver, or give another --socket-dir")                                      \
  X(SocketFailed, 2004, kIo, kExitFailed, "A socket could not be made, bound or listened on.",     \
    "check that the socket directory exists, is yours and has a short path")                       \
  X(KeeperFailed, 2005, kIo, kExitFailed,                                                          \
    "The process that keeps memory over the end of memserver cannot be started, does not answer, " \
    "or serves another memserver.",                                                                \
    "see the lines of the process tp-keeper in the log; end it, or start with --keeper none")      \
  X(KeptLayoutUnknown, 2006, kVersion, kExitVersion,                                               \
    "Memory was kept over the end of a memserver, and its layout is of another release; this "     \
    "memserver neither reads nor drops it by "                                                     \
    "itself.",                                                                                     \
    "start the memserver release that made it, or give its jobs up with --discard-kept")           \
  X(KeptMemoryBad, 2007, kCorrupt, kExitCorrupt,                                                   \
    "Kept memory does not fit together: a size, a checksum or a number that no memserver writes. " \
    "Nothing of it is used.",                                                                      \
    "its jobs cannot go on; start them again from saved weights")                                  \
  X(PoolFull, 2101, kRefused, kExitRefused,                                                        \
    "The job reserves more host memory than the pool has free, and than detached jobs can give "   \
    "it by moving to NVMe; jobs that are "                                                         \
    "admitted never run short later.",                                                             \
    "give memserver a larger --pool, end another job, or see `memctl ps`")                         \
  X(RcacheRefused, 2102, kRefused, kExitRefused,                                                   \
    "The rCache asked for is larger than what memserver grants to one job.",                       \
    "ask for a smaller --rcache, or give memserver a larger --rcache-limit")                       \
  X(TooManySessions, 2103, kRefused, kExitRefused,                                                 \
    "The limit on ranks attached at once is reached, or memserver is being drained and takes no "  \
    "new jobs.",                                                                                   \
    "end another job, or raise `limits` in the configuration")                                     \
  X(QuotaExceeded, 2104, kRefused, kExitRefused,                                                   \
    "The job would bring its account (its user, or the job itself where it has a quota) above "    \
    "its limit, or its user above the ranks, "                                                     \
    "jobs or places in the queue that one user may have.",                                         \
    "end a job, or ask an operator: `memctl job quota`, --user-sessions-max, --user-jobs-max")     \
  X(QuotaRefused, 2105, kRefused, kExitRefused,                                                    \
    "A quota would guarantee bytes that other jobs hold or that are guaranteed to others.",        \
    "guarantee less, or wait until jobs have ended; `memctl ps` lists what they hold")             \
  X(NvmeRingDenied, 2201, kIo, kExitFailed,                                                        \
    "The system denies io_uring; reads and writes of the NVMe tier go through threads.",           \
    "allow io_uring (kernel.io_uring_disabled, or the container's seccomp profile)")               \
  X(NvmeDirectoryBad, 2202, kRefused, kExitFailed,                                                 \
    "A directory given with --nvme cannot be used: its path has a symbolic link, it belongs to "   \
    "somebody else, others may enter it, or a "                                                    \
    "file in it is not a plain file of ours.",                                                     \
    "give an existing directory of your own, mode 0700, without symbolic links in its path")       \
  X(NvmeInUse, 2203, kRefused, kExitFailed,                                                        \
    "Another memserver uses the NVMe directory, or writes of one that has ended have not landed "  \
    "yet.",                                                                                        \
    "stop the other memserver, or give another --nvme directory")                                  \
  X(NvmeSpaceShort, 2204, kRefused, kExitRefused,                                                  \
    "The file system has no room for the size given with --nvme; it is reserved at start, so "     \
    "that no job runs short later.",                                                               \
    "give a smaller --nvme size, or free space on that file system")                               \
  X(NvmeFull, 2205, kRefused, kExitRefused,                                                        \
    "The states of the job fit neither into the host pool nor into the NVMe directories.",         \
    "give memserver a larger --nvme, end another job, or use --states-on host")                    \
  X(NvmeIoFailed, 2206, kIo, kExitFailed,                                                          \
    "A read of states failed and went on failing when it was repeated, or a flush failed while a " \
    "job began. The job ends; other jobs go "                                                      \
    "on.",                                                                                         \
    "look at the kernel log for this device; start the job again from saved weights")              \
  X(NvmeDataBad, 2207, kCorrupt, kExitCorrupt,                                                     \
    "A piece of states on NVMe does not fit its checksum or its name. The job ends rather than "   \
    "train with wrong numbers.",                                                                   \
    "the device or the file lost data; start the job again from saved weights")                    \
  X(NvmeManifestBad, 2208, kCorrupt, kExitCorrupt,                                                 \
    "A table of contents in an NVMe directory is damaged. The other one of the two is used; "      \
    "where both are damaged, what the directory "                                                  \
    "held is given up.",                                                                           \
    "the directory was damaged; its jobs cannot go on")                                            \
  X(NvmeDirectoryMissing, 2209, kRefused, kExitFailed,                                             \
    "A job in kept memory has states on NVMe, in a directory that is not there, was not given, "   \
    "or stands elsewhere in the list. "                                                            \
    "Nothing is lost: the keeper goes on holding it.",                                             \
    "mount its drive, give all --nvme directories in their old order; or use --discard-kept")      \
  X(NvmeStalled, 2210, kIo, kExitFailed,                                                           \
    "A drive has not answered a read of states for ten deadlines (`--nvme-deadline`), or a write " \
    "for which the pool has no room either. "                                                      \
    "The job ends; other jobs go on.",                                                             \
    "see the kernel log; start again from saved weights, in another --nvme directory")             \
  X(CudaUnavailable, 2301, kRefused, kExitHostUnfit,                                               \
    "A GPU was asked for, and the CUDA driver is not there, shows no such GPU, or lacks what "     \
    "Tidepool needs of it; the text says which.",                                                  \
    "see `nvidia-smi`; or run on the host: trainer --device cpu, memserver --gpu none")            \
  X(CudaFailed, 2302, kIo, kExitFailed,                                                            \
    "A call of the CUDA driver failed; its name and code stand in the text. The session that it "  \
    "served ends; other jobs go on.",                                                              \
    "look at the kernel log for Xid messages of this GPU, and start the rank again")               \
  X(DeviceMemoryShort, 2303, kRefused, kExitDeviceMemory,                                          \
    "The GPU has less free memory than was asked for; the text says how much of what.",            \
    "use a smaller --rcache or --batch, or --checkpoint-activations; see `trainer estimate`")      \
  X(NoServer, 3001, kUnavailable, kExitNoServer,                                                   \
    "Nothing listens at the socket, so no memserver was ever reached.",                            \
    "start one with `memserver run`, or use `trainer run --standalone`")                           \
  X(AbiMismatch, 3002, kVersion, kExitVersion,                                                     \
    "Trainer and memserver were built from releases whose shared-memory layouts differ.",          \
    "install memserver and trainer of the same release")                                           \
  X(HandshakeBad, 3003, kInvalid, kExitFailed,                                                     \
    "The first frames on the socket are not those of a Tidepool client.",                          \
    "the peer does not speak this protocol; check what connects to this socket")                   \
  X(JobSpecBad, 3004, kInvalid, kExitFailed,                                                       \
    "The description of parameters, chunks and groups contradicts itself or a limit.",             \
    "the trainer described its job wrongly; report this with the text above")                      \
  X(JobMismatch, 3005, kRefused, kExitRefused,                                                     \
    "A rank describes the job of this name otherwise than the ranks before it did.",               \
    "start all ranks with the same flags, or choose another --job name")                           \
  X(RankTaken, 3006, kRefused, kExitRefused, "This rank of the job is attached already.",          \
    "each rank may attach once; choose another --job name for a second run")                       \
  X(NotOwner, 3007, kRefused, kExitRefused,                                                        \
    "The job or the socket belongs to another user, or a change takes the rights of an operator "  \
    "or admin (docs/security.md).",                                                                \
    "attach as the user who owns the job or the socket")                                           \
  X(SessionEnded, 3008, kUnavailable, kExitFailed,                                                 \
    "The server ended this session on purpose and gave the reason to its log.",                    \
    "the server ended this session; its log names the cause")                                      \
  X(ServerGone, 3009, kUnavailable, kExitJobKept,                                                  \
    "The server was there, its connection has closed without a word, and it has not come back "    \
    "within --server-timeout. The job is kept "                                                    \
    "as long as its keeper lives.",                                                                \
    "see the memserver log; where its keeper lives, run the same command with --resume auto")      \
  X(ProtocolViolation, 3010, kInvalid, kExitFailed,                                                \
    "An entry of the submission ring is malformed or breaks the order of a step; the session "     \
    "ends, nothing else is touched.",                                                              \
    "a request in the ring was malformed; report this with the text above")                        \
  X(WaitTimeout, 3011, kTimeout, kExitTimeout, "An answer did not come within the time limit.",    \
    "the other side did not answer in time; raise --timeout or look at its log")                   \
  X(PeerLost, 3012, kUnavailable, kExitFailed,                                                     \
    "Another rank of the same job died or left in mid-step, so the step cannot be sealed.",        \
    "another rank of the job ended; see its output")                                               \
  X(RankCountMismatch, 3013, kRefused, kExitRefused,                                               \
    "The job was made for another number of ranks.",                                               \
    "start exactly as many ranks as the job was made for")                                         \
  X(StatesLost, 3014, kUnavailable, kExitCorrupt,                                                  \
    "The memserver that answers holds no states of this job: the one before it ended together "    \
    "with the keeper of its memory, or the "                                                       \
    "job's lease has ended.",                                                                      \
    "start again from saved weights, or from the beginning: `--resume auto --or-new`")             \
  X(VersionGone, 3015, kUnavailable, kExitFailed,                                                  \
    "A rank had ended its step while a fetch of that step's version was unanswered, memserver "    \
    "was restarted, and the update has "                                                           \
    "overwritten that version.",                                                                   \
    "the step that these parameters belong to had ended; fetch the next version")                  \
  X(JobBusy, 3016, kRefused, kExitRefused, "A job that still has ranks was to be released.",       \
    "end its ranks first, or say that they are to be ended (--force)")                             \
  X(ChunkFrozen, 3017, kRefused, kExitFailed,                                                      \
    "A rank sent a gradient or weights for a frozen chunk that is there. Nothing was written; "    \
    "its session goes on.",                                                                        \
    "frozen chunks are read only; change the chunks that the job trains")                          \
  X(UploadLost, 3018, kRefused, kExitFailed,                                                       \
    "A rank put bytes of a frozen chunk whose upload is not, or no longer, its own.",              \
    "claim the chunk again, and put it from its start where it is not there by then")              \
  X(ContentMismatch, 3019, kCorrupt, kExitCorrupt,                                                 \
    "The bytes that a rank put as a frozen chunk do not have the hash by which it is named. "      \
    "Nobody has seen them.",                                                                       \
    "hash the bytes that are put (`b2sum -l 256`), or put those that were hashed")                 \
  X(AdminNotFound, 3101, kNotFound, kExitNotFound,                                                 \
    "The admin socket has no such path, or no job of that name or number is there.",               \
    "`memctl ps` lists the jobs; docs/admin_api.md lists the paths")                               \
  X(AdminBadRequest, 3102, kInvalid, kExitUsage,                                                   \
    "A request to the admin socket is malformed, too large, or uses a method or a parameter that " \
    "its path does not have.",                                                                     \
    "correct the request; docs/admin_api.md shows each path and its parameters")                   \
  X(NotReady, 3103, kUnavailable, kExitFailed,                                                     \
    "memserver runs, but is still starting, is draining, or its serve loop does not answer; or "   \
    "the job waits for the end of a memserver "                                                    \
    "before it that was killed and has not ended.",                                                \
    "wait until memserver is ready (`memctl wait-ready`), or look at its log")                     \
  X(RcacheTooSmall, 4001, kRefused, kExitDeviceMemory,                                             \
    "One operator needs more chunks at once than the rCache has blocks; the smallest size that "   \
    "works is named.",                                                                             \
    "raise --rcache to at least the size named above")                                             \
  X(ParameterTooLarge, 4002, kInvalid, kExitUsage,                                                 \
    "A parameter does not fit into one chunk; parameters never span chunks.",                      \
    "raise --chunk-size to at least the largest parameter")                                        \
  X(TensorStateIllegal, 4003, kInvalid, kExitFailed,                                               \
    "A parameter made a move that the tensor state machine forbids, as when an operator reads it " \
    "after its gradient has come, which lies "                                                     \
    "in its place.",                                                                               \
    "declare the parameter as used several times, or report this model")                           \
  X(ChunkNotReady, 4004, kInvalid, kExitFailed,                                                    \
    "An operator used a parameter outside a step, when its chunk is held by nobody.",              \
    "a chunk was used outside a step; report this model")                                          \
  X(FileUnreadable, 5001, kIo, kExitNotFound, "A data or weights file cannot be opened or read.",  \
    "check the path and its permissions")                                                          \
  X(DataBad, 5002, kInvalid, kExitUsage,                                                           \
    "The data are of no known form, or too few for one batch; or saved weights do not fit the "    \
    "model.",                                                                                      \
    "give a text file or directory, or a token file of llm.c or nanoGPT")                          \
  X(SafetensorsBad, 5003, kCorrupt, kExitCorrupt,                                                  \
    "A number or a text in the header of the weights file cannot be right, or the file is cut "    \
    "short.",                                                                                      \
    "the file is damaged or not safetensors; write it again")                                      \
  X(SaveFailed, 5004, kIo, kExitFailed,                                                            \
    "Weights could not be written; the file that was there before is untouched.",                  \
    "check free space and permissions of the directory; the former file is kept")                  \
  X(FileWriteFailed, 5005, kIo, kExitFailed,                                                       \
    "A report (metrics, event file, plot) could not be written.",                                  \
    "check free space and permissions")                                                            \
  X(CheckpointBad, 5006, kCorrupt, kExitCorrupt,                                                   \
    "A checkpoint is not whole: a file or a tensor is missing, or its bytes do not fit their "     \
    "check. Nothing of it is loaded.",                                                             \
    "go on behind the checkpoint before it: --resume DIR")                                         \
  X(NonFinite, 6001, kCorrupt, kExitNonFinite, "The loss or a gradient is NaN or infinite.",       \
    "lower the learning rate, use warm-up or clipping, or --dtype fp32")                           \
  X(CollectiveFailed, 6002, kUnavailable, kExitFailed,                                             \
    "A collective operation between the ranks failed or timed out.",                               \
    "see the output of the other ranks; between machines, check MASTER_ADDR and MASTER_PORT")      \
  X(StepAbandoned, 6003, kUnavailable, kExitFailed,                                                \
    "An error inside an operator hook made the step unusable; it was not sealed and the job "      \
    "stays at the last sealed step.",                                                              \
    "the step was not sealed; the cause stands above")                                             \
  X(RanksMissing, 6004, kTimeout, kExitJobKept,                                                    \
    "Other ranks of the run have ended for good, or have given no sign of life for the time that " \
    "they are waited for: five minutes and "                                                       \
    "--server-timeout, with --resume auto --rejoin-timeout. The error names them. Nothing that "   \
    "was sealed is lost.",                                                                         \
    "see why the missing ranks ended, then start all ranks again")                                 \
  X(LibraryFailed, 9001, kInvalid, kExitFailed,                                                    \
    "A third-party library threw an exception that has no meaning of its own here.",               \
    "an error inside a library; report this with the text above")                                  \
  X(Internal, 9002, kInvalid, kExitFailed,                                                         \
    "A state that cannot be reached was reached, or a peer sent an error number that this "        \
    "release does not know.",                                                                      \
    "a bug in Tidepool; report this with the text above")

// The stable numbers of all errors; kNone is success.
enum class ErrorId : uint16_t {
  kNone = 0,
#define TIDEPOOL_ERROR_ENUM(name, number, code, exit, meaning, advice) k##name = number,
  TIDEPOOL_ERRORS(TIDEPOOL_ERROR_ENUM)
#undef TIDEPOOL_ERROR_ENUM
};

// One row of the catalogue.
struct ErrorEntry {
  ErrorId id;
  const char* name;  // "PoolFull"
  Code code;
  int exit_code;
  const char* meaning;  // one or more sentences
  const char* advice;   // one line, no full stop
};

// The whole table, in order of number.
std::span<const ErrorEntry> ErrorCatalog();
// The entry of `id`; kInternal's for an unknown number (a peer may send any).
const ErrorEntry& ErrorEntryOf(ErrorId id);

}  // namespace tidepool
