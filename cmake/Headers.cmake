# Precompiled sets of headers, each built once and shared: half of the time that a small file takes goes into reading headers.
#
#   tidepool_std_pch       the standard library, for the rooms.
#   tidepool_program_pch   the same for programs (-fPIE).
#   tidepool_model_pch     the same for the libraries of tests in the build for ASan, which are optimised there.
#   tidepool_test_pch      the standard library and GoogleTest, for the test programs of every build.
#
# A precompiled header is valid only for the flags that it was made with. Files with options of their own go without (tidepool_plain).
# That every file includes what it uses is shown by scripts/nightly, which builds with CMAKE_DISABLE_PRECOMPILE_HEADERS and
# without TIDEPOOL_UNITY.
set(TIDEPOOL_STD_HEADERS
  <algorithm> <array> <atomic> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex> <optional> <set> <span> <string>
  <string_view> <thread> <utility> <variant> <vector>)

# tidepool_headers(NAME OPTIONS x... HEADERS <a>... [DEPS target...])
function(tidepool_headers name)
  cmake_parse_arguments(ARG "" "" "OPTIONS;HEADERS;DEPS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "// Holds precompiled headers.\n")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE tidepool_flags ${ARG_DEPS})
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
endfunction()

# The code of a test itself is not what is tested, and compiling it is half of each build. In the release build and in that for ASan it is
# not optimised, and neither checked for undefined behaviour nor instrumented for fuzzers (TSan's loops need optimising); the release build
# keeps no debug information of it. Loops that take long (simulation, fakes, campaigns) are in libraries, which are compiled as any other.
set(TIDEPOOL_TEST_OPTIONS -fPIC)
if(NOT TIDEPOOL_SANITIZE)
  list(APPEND TIDEPOOL_TEST_OPTIONS $<$<CONFIG:RelWithDebInfo>:-g0> $<$<CONFIG:RelWithDebInfo>:-O0>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # sees overflows where strings are added up (GCC bugs 105329, 105651)
  set(TIDEPOOL_STRING_WARNINGS_OFF -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
  list(APPEND TIDEPOOL_TEST_OPTIONS ${TIDEPOOL_STRING_WARNINGS_OFF})
endif()
if(TIDEPOOL_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    list(APPEND TIDEPOOL_TEST_OPTIONS -O0 -fno-sanitize=undefined,fuzzer-no-link)
  endif()
endif()
tidepool_headers(tidepool_std_pch HEADERS ${TIDEPOOL_STD_HEADERS})
tidepool_headers(tidepool_program_pch OPTIONS -fPIE HEADERS ${TIDEPOOL_STD_HEADERS})
# The models and loops that tests compare with are a third of what clang's build runs: they alone are optimised, and no more is checked in
# them than in the tests.
if(TIDEPOOL_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(TIDEPOOL_MODEL_OPTIONS -O1 -fno-sanitize=undefined,fuzzer-no-link)
  set(TIDEPOOL_MODEL_HEADERS tidepool_model_pch)
  tidepool_headers(tidepool_model_pch OPTIONS ${TIDEPOOL_MODEL_OPTIONS} HEADERS ${TIDEPOOL_STD_HEADERS})
else()
  set(TIDEPOOL_MODEL_OPTIONS ${TIDEPOOL_STRING_WARNINGS_OFF})
  set(TIDEPOOL_MODEL_HEADERS tidepool_std_pch)
endif()
tidepool_headers(tidepool_test_pch OPTIONS ${TIDEPOOL_TEST_OPTIONS} HEADERS ${TIDEPOOL_STD_HEADERS} <gmock/gmock.h> <gtest/gtest.h>
                 DEPS GTest::gmock GTest::gtest)

function(tidepool_precompiled target headers)
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${headers})
endfunction()

# tidepool_plain(a.cpp ...): files that are compiled without precompiled headers.
function(tidepool_plain)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()
