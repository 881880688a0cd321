#include "bench/loops/undo_part_loop.h"

namespace tidepool::bench {

extern const UndoPartLoop kUndoPartV4;
const UndoPartLoop kUndoPartV4 = RunUndoPart;

}  // namespace tidepool::bench
