// The release and build of this program, as shown in messages and by `memserver version`. The
// numbers come from CMakeLists.txt.
//
// Any thread; constants.
#pragma once

namespace tidepool::memserver {

inline constexpr const char* kReleaseVersion = TIDEPOOL_VERSION;
inline constexpr const char* kBuild = TIDEPOOL_BUILD;

}  // namespace tidepool::memserver
