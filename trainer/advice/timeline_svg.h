// TimelineSvg: a pipeline's schedule as a picture: computation of each GPU, and copies of each root
// complex, over the time of one step.
//
// Any thread; torch-free, pure. The colours are those of memctl's page (Okabe and Ito, safe for
// colour-blind readers); each kind is named in the legend, and stages are numbered where there is
// space.
#pragma once

#include <string>

#include "trainer/advice/pipeline_advice.h"

namespace tidepool::trainer {

// A complete SVG document.
std::string TimelineSvg(const PipelineWay& way, const std::string& title);

}  // namespace tidepool::trainer
