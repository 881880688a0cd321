# Every switch of the build, with its default and meaning.
set(TIDEPOOL_CUDA AUTO CACHE STRING "Link the CUDA toolkit and NCCL: AUTO (where found), ON (required), OFF")
set_property(CACHE TIDEPOOL_CUDA PROPERTY STRINGS AUTO ON OFF)
option(TIDEPOOL_TORCH "Build the LibTorch rooms (trainer program, hooks, model, comm)" ON)
set(TIDEPOOL_SANITIZE "" CACHE STRING "Value for -fsanitize=, empty for none")
set(TIDEPOOL_SUITE "" CACHE STRING "First part of every test's name (asan, tsan), so that several builds can be run by one ctest; empty for none")
if(DEFINED ENV{TIDEPOOL_DEPS})
  set(TIDEPOOL_DEPS_DEFAULT $ENV{TIDEPOOL_DEPS})
else()
  set(TIDEPOOL_DEPS_DEFAULT ${CMAKE_SOURCE_DIR}/.deps)
endif()
set(TIDEPOOL_DEPS ${TIDEPOOL_DEPS_DEFAULT} CACHE PATH "Folder that scripts/setup filled (holds the torch virtual environment)")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Debug information is kept small (-g1): it names functions and lines, and links fast. Assertions (TP_CHECK) do not depend on NDEBUG.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(TIDEPOOL_CCACHE ccache)
if(TIDEPOOL_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines,time_macros: what ccache needs to serve files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TIDEPOOL_CCACHE})
endif()
find_program(TIDEPOOL_MOLD mold)
if(TIDEPOOL_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

set(TIDEPOOL_SANITIZE_TEXT none)
if(TIDEPOOL_SANITIZE)
  set(TIDEPOOL_SANITIZE_TEXT ${TIDEPOOL_SANITIZE})
  add_compile_options(-fsanitize=${TIDEPOOL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -O1 -g1)
  # The sanitizers' own code makes g++ 12 see reads of an empty std::optional that do not exist (GCC bug 80635), and thread fences, which
  # the thread sanitizer does not model, would stop the build; the fences here only order stores for a process that is killed.
  add_compile_options(-Wno-maybe-uninitialized -Wno-tsan)
  add_link_options(-fsanitize=${TIDEPOOL_SANITIZE})
  add_compile_definitions(TIDEPOOL_SANITIZED=1)
  if(TIDEPOOL_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # Boost.Asio has fences, which this sanitizer does not see; our own rooms use none
  endif()
endif()
