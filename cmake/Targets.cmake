# Helpers that keep each folder's CMakeLists.txt a list of names.
add_library(tidepool_flags INTERFACE)
target_compile_options(tidepool_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
target_include_directories(tidepool_flags INTERFACE ${CMAKE_SOURCE_DIR})

# The builds for sanitizers (TIDEPOOL_SUITE) make what their tests use, no more: libraries and programs join when a test needs them.
function(tidepool_only_if_used name)
  if(TIDEPOOL_SUITE)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# Files that open the door to a large package of headers (Asio, Beast, JSON, CLI11, spdlog, toml++). None of them is ever in a hurry, and
# optimising the packages takes long, most of all for sanitizers, which instrument all of it: clang's looks at addresses alone here.
if(TIDEPOOL_SANITIZE)
  set(TIDEPOOL_DOOR_OPTIONS -O0 $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=undefined,fuzzer-no-link>)
else()
  set(TIDEPOOL_DOOR_OPTIONS $<$<CONFIG:RelWithDebInfo>:-O1>)
endif()

# tidepool_door(a.cpp ...): the only such file of its room. (A file with options of its own is compiled on its own.)
function(tidepool_door)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${TIDEPOOL_DOOR_OPTIONS}")
  if(TIDEPOOL_SANITIZE)
    tidepool_plain(${ARGN})
  endif()
endfunction()

# tidepool_doors(ROOM a.cpp b.cpp ...): several of the room ROOM. They are compiled together, apart from its other files, so that each package
# is read and instantiated once. Comes after all else that is said of ROOM; tidepool_library does not name these files.
function(tidepool_doors room)
  add_library(${room}_doors OBJECT ${ARGN})
  tidepool_only_if_used(${room}_doors)
  foreach(what INCLUDE_DIRECTORIES COMPILE_DEFINITIONS COMPILE_OPTIONS)
    set_property(TARGET ${room}_doors PROPERTY ${what} $<TARGET_PROPERTY:${room},${what}>)
  endforeach()
  target_compile_options(${room}_doors PRIVATE ${TIDEPOOL_DOOR_OPTIONS})
  if(NOT TIDEPOOL_SANITIZE)
    tidepool_precompiled(${room}_doors tidepool_std_pch)
  endif()
  target_sources(${room} PRIVATE $<TARGET_OBJECTS:${room}_doors>)
endfunction()

# tidepool_alone(a.cpp ...): files with objects of their own, which a program may have another one in place of.
function(tidepool_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# With TIDEPOOL_PLANTED, the rooms that have planted bugs compile them in, and optimise less, because nobody waits for them to run; all others
# are those of the release build (and come from ccache).
function(tidepool_planted target sources)
  if(NOT TIDEPOOL_PLANTED)
    return()
  endif()
  foreach(source IN LISTS sources)
    file(STRINGS ${source} planted REGEX "base/planted.h" LIMIT_COUNT 1)
    if(planted)
      target_compile_definitions(${target} PRIVATE TIDEPOOL_PLANTED_BUGS=1)
      target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:RelWithDebInfo>:-g0>)
      return()
    endif()
  endforeach()
endfunction()

# tidepool_library(NAME SOURCES a.cpp ... [DEPS target ...]): a static library of one room.
function(tidepool_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  tidepool_only_if_used(${name})
  tidepool_planted(${name} "${ARG_SOURCES}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:tidepool_flags>)
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:include/tidepool>)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/tests/" AND NOT (TIDEPOOL_FUZZ AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/fuzz$"))
    target_compile_options(${name} PRIVATE ${TIDEPOOL_MODEL_OPTIONS})
    tidepool_precompiled(${name} ${TIDEPOOL_MODEL_HEADERS})
  else()
    tidepool_precompiled(${name} tidepool_std_pch)
  endif()
endfunction()

# tidepool_objects(NAME a.cpp ...): files that several programs have, compiled once.
function(tidepool_objects name)
  add_library(${name} OBJECT ${ARGN})
  tidepool_only_if_used(${name})
  target_link_libraries(${name} PRIVATE tidepool_flags)
  target_compile_options(${name} PRIVATE -fPIE)
  tidepool_precompiled(${name} tidepool_program_pch)
endfunction()

# tidepool_program(NAME SOURCES a.cpp ... [DEPS target ...]): a program in build/bin.
function(tidepool_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  tidepool_only_if_used(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} tidepool_flags)
  tidepool_precompiled(${name} tidepool_program_pch)
endfunction()

# What every test runs with. A sanitizer's finding ends the program; leaks are findings too.
set(TIDEPOOL_TEST_ENVIRONMENT
  ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-14
  UBSAN_OPTIONS=print_stacktrace=1
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1)
# ThreadSanitizer of g++ 12 cannot place its shadow where the kernel spreads addresses over more than 28 bits.
set(TIDEPOOL_TEST_LAUNCHER "")
if(TIDEPOOL_SANITIZE MATCHES thread)
  execute_process(COMMAND setarch -R true RESULT_VARIABLE TIDEPOOL_SETARCH_FAILED OUTPUT_QUIET ERROR_QUIET)
  if(NOT TIDEPOOL_SETARCH_FAILED)
    set(TIDEPOOL_TEST_LAUNCHER setarch -R)
  endif()
endif()
if(TIDEPOOL_SUITE)
  set(TIDEPOOL_TEST_PREFIX "${TIDEPOOL_SUITE}.")
endif()

# tidepool_script_test(NAME COMMAND command... [LABELS x] [TIMEOUT s] [ENVIRONMENT A=b] [SECONDS s] [ALONE|CROWDED] [NIGHT]): a ctest that is not a GoogleTest
# program. SECONDS: about what a long one takes, in the slowest of the builds; the longest begin first. ALONE: nothing runs beside it. CROWDED:
# it loads several cores itself, so that on two cores one other runs beside it. NIGHT: scripts/test leaves it to scripts/nightly.
function(tidepool_script_test name)
  cmake_parse_arguments(ARG "ALONE;CROWDED;NIGHT" "TIMEOUT;SECONDS" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(ARG_NIGHT)
    list(APPEND ARG_LABELS night)
  endif()
  set(test ${TIDEPOOL_TEST_PREFIX}${name})
  add_test(NAME ${test} COMMAND ${ARG_COMMAND})
  set_tests_properties(${test} PROPERTIES TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${ARG_LABELS};${TIDEPOOL_SUITE}"
                       ENVIRONMENT "${TIDEPOOL_TEST_ENVIRONMENT};${ARG_ENVIRONMENT}")
  if(ARG_SECONDS)
    set_tests_properties(${test} PROPERTIES COST ${ARG_SECONDS})
  endif()
  if(ARG_ALONE)
    set_tests_properties(${test} PROPERTIES RUN_SERIAL ON)
  elseif(ARG_CROWDED)
    set_tests_properties(${test} PROPERTIES PROCESSORS 3)
  endif()
endfunction()

# The programs of the tests labelled gpu, which say why they were skipped where there is none (scripts/gpu_check builds them).
add_custom_target(gpu_tests)

# tidepool_test(NAME SOURCES a_test.cpp ... [DEPS target ...] [DEFINES A=b ...] [NEEDS target ...] [LABELS x] [TIMEOUT s] [SECONDS s]
#               [ALONE|CROWDED] [OWN] [ONE_THREAD] [PROGRAMS|LONG_PROGRAMS|LONG]): tests of one subject, as one ctest.
# All subjects of a folder are one program, whose files are compiled 24 at once: alone they take more than twice as long (docs/decisions/017).
# tests/NAME in the build folder runs the subject in it. NEEDS: what else must be built. OWN: it is a program of its own, a target of its name.
# ONE_THREAD: nothing in it runs beside anything else, so that the thread sanitizer's suite leaves it out. PROGRAMS: its threads are those of
# programs that it starts, which tests in one process and the campaign have as well: that suite leaves it to the night (TIDEPOOL_NIGHT).
# LONG_PROGRAMS: the same, and its kills and waits take so long that the address sanitizer's suite leaves it to the night too.
# LONG: it starts no programs, and takes so long with sanitizers that their suites leave it to the night.
function(tidepool_test name)
  cmake_parse_arguments(ARG "ONE_THREAD;ALONE;CROWDED;OWN;PROGRAMS;LONG_PROGRAMS;LONG" "TIMEOUT;SECONDS" "SOURCES;DEPS;DEFINES;NEEDS;LABELS" ${ARGN})
  if(TIDEPOOL_SANITIZE MATCHES thread AND (ARG_ONE_THREAD OR (ARG_PROGRAMS AND NOT TIDEPOOL_NIGHT)))
    return()
  endif()
  if(TIDEPOOL_SANITIZE AND (ARG_LONG_PROGRAMS OR ARG_LONG) AND NOT TIDEPOOL_NIGHT)
    return()
  endif()
  set(program ${name})
  set(main GTest::gtest_main)
  if(NOT ARG_OWN)
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR}/tests ${CMAKE_CURRENT_SOURCE_DIR})
    string(REPLACE "/" "_" program ${folder}_tests)
    set(main tidepool_subject_main)
    list(TRANSFORM ARG_SOURCES REPLACE ".*/" "" OUTPUT_VARIABLE files)
    string(REPLACE ";" "," files "${files}")
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/tests/${name} CONTENT "#!/bin/sh\nexec '$<TARGET_FILE:${program}>' '--files=${files}' \"$@\"\n"
         FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    add_custom_target(${name} DEPENDS ${program})
  endif()
  if(NOT TARGET ${program})
    add_executable(${program})
    target_link_libraries(${program} PRIVATE tidepool_flags GTest::gmock ${main})
    target_compile_options(${program} PRIVATE ${TIDEPOOL_TEST_OPTIONS})
    tidepool_precompiled(${program} tidepool_test_pch)
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests UNITY_BUILD_BATCH_SIZE 24)
  endif()
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  target_compile_definitions(${program} PRIVATE ${ARG_DEFINES})
  if(ARG_NEEDS)
    add_dependencies(${program} ${ARG_NEEDS})
  endif()
  if("gpu" IN_LIST ARG_LABELS)
    add_dependencies(gpu_tests ${program})
  endif()
  set(alone "")
  if(ARG_ALONE)
    set(alone ALONE)
  elseif(ARG_CROWDED)
    set(alone CROWDED)
  endif()
  tidepool_script_test(${name} COMMAND ${TIDEPOOL_TEST_LAUNCHER} ${CMAKE_BINARY_DIR}/tests/${name} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT}
                       SECONDS ${ARG_SECONDS} ${alone})
endfunction()
