#include "bench/loops/undo_part_loop.h"

namespace tidepool::bench {

extern const UndoPartLoop kUndoPartV3;
const UndoPartLoop kUndoPartV3 = RunUndoPart;

}  // namespace tidepool::bench
