// TimelineSvg: a pipeline's schedule as a picture: computation of each GPU, and copies of each root
// complex, over the time of one step.
//
// Any thread; torch-free, pure. The colours are those of memctl's page (Okabe and Ito, safe for
// colour-blind readers); each kind is named in the legend, and stages are numbered where there is
// space. Positions across are shares of the width: it may be shown 420 to 3840 pixels wide, without
// a script.
#pragma once

#include <string>
#include <vector>

#include "trainer/advice/pipeline_advice.h"
#include "trainer/output/planned_lanes.h"

namespace tidepool::trainer {

// A complete SVG document.
std::string TimelineSvg(const PipelineWay& way, const std::string& title);

// The same computations and copies, in the same lanes, for a trace.
std::vector<PlannedSpan> PlannedSpans(const PipelineWay& way);

}  // namespace tidepool::trainer
