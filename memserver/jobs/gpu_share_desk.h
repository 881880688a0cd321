// GpuShareDesk: the shares of jobs whose states lie in GPU memory (decision 026): which rank has to
// make one, when it may be used, and how it is released.
//
// One thread (the serve loop). The job owns the shares (GpuQueue); the keeper has a slot for each,
// so that they outlive this process.
#pragma once

#include "memserver/jobs/desk_context.h"

namespace tidepool::memserver {

class GpuShareDesk {
 public:
  explicit GpuShareDesk(const DeskContext& context) : context_(context) {}

  // Checks a job's request for states on GPUs. Errors: kJobSpecBad where the ranks do not bring
  // those GPUs, kTooManySessions where the keeper has too few slots.
  Status Admit(const ReserveJob& event) const;
  // Also valid for a job of the former server whose other ranks are not back yet.
  static Status CheckBrings(const Job& job, Rank rank, bool client_owned_rcache);
  // Bytes of the share that the rank has to bring; 0: none, or it exists already.
  static uint64_t StatesToMake(const SessionSlot& slot);
  // Makes the memory that was made for the rank its share, whatever becomes of the rank.
  Status TakeShare(SessionSlot* slot);
  // The keeper has stored the memory of a share, or has released it.
  void NoteKept(const StatesKept& event);
  // A share that the former server had is mapped, or cannot be.
  void NoteImported(StatesImported event);
  // Releases the shares of a job that ends. True when only the table still refers to them: neither
  // a GPU nor the keeper does.
  bool LetGo(Job* job);
  // The streams of the GPU that a rank brought, opened for its first rank.
  Result<GpuStreams*> StreamsOf(Gpu* gpu);

 private:
  Status Open(GpuShare* share, GpuStateMemory states);

  const DeskContext context_;
};

}  // namespace tidepool::memserver
