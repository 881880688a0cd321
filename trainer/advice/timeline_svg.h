// TimelineSvg: a pipeline's schedule as a picture: what each GPU computes, and what each root
// complex copies, over the time of one step.
//
// Any thread; torch-free, pure. Colours are those of memctl's page (Okabe and Ito, told apart by
// the colour-blind); each kind has a name in the legend, and stages have their numbers where there
// is room.
#pragma once

#include <string>

#include "trainer/advice/pipeline_advice.h"

namespace tidepool::trainer {

// A whole SVG document.
std::string TimelineSvg(const PipelineWay& way, const std::string& title);

}  // namespace tidepool::trainer
