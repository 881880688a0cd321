// GpuShareDesk: the shares of jobs whose states lie in memory of GPUs (decision 026): which rank
// has to make one, when it may be used, and how it is let go of.
//
// One thread (the serve loop). The shares themselves are the job's (GpuQueue); the keeper has a
// slot for each, so that they outlive this process.
#pragma once

#include "memserver/jobs/desk_context.h"

namespace tidepool::memserver {

class GpuShareDesk {
 public:
  explicit GpuShareDesk(const DeskContext& context) : context_(context) {}

  // Errors: kJobSpecBad where states are wanted on GPUs that the ranks do not bring,
  // kTooManySessions where the keeper has too few slots.
  Status Admit(const ReserveJob& event) const;
  // Also for a job that came from the server before this one, whose other ranks are not back.
  static Status CheckBrings(const Job& job, Rank rank, bool client_owned_rcache);
  // Bytes of the share that the rank has to bring; 0: none, or it is there.
  static uint64_t StatesToMake(const SessionSlot& slot);
  // The memory that was made for the rank is its share from now on, whatever becomes of the rank.
  Status TakeShare(SessionSlot* slot);
  // The keeper has the memory of a share, or has let go of it.
  void NoteKept(const StatesKept& event);
  // A share that the server before this one had is mapped, or cannot be.
  void NoteImported(StatesImported event);
  // Gives up the shares of a job that ends. True when nobody but the table knows of them any more:
  // neither a GPU, nor the keeper.
  bool LetGo(Job* job);
  // The streams of the GPU that a rank brought, opened for the first of them.
  Result<GpuStreams*> StreamsOf(Gpu* gpu);

 private:
  Status Open(GpuShare* share, GpuStateMemory states);

  const DeskContext context_;
};

}  // namespace tidepool::memserver
