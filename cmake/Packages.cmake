# The doors to third-party packages. Each target here is linked by the one or two .cpp files' room that includes the package.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.81 REQUIRED COMPONENTS json url)
# Asio asks operator new for memory, so that a lack of it ends as base/system/last_words.h says; its own allocator throws where nobody can catch.
# On the target, for all users alike: inline functions of files that differ in this would free what the other's allocator gave.
set_property(TARGET Boost::headers APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS BOOST_ASIO_DISABLE_STD_ALIGNED_ALLOC BOOST_ASIO_DISABLE_BOOST_ALIGN)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(GTest REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

# The headers of CUDA and NCCL are used where the toolkit is found; nothing needs a GPU, or a driver, to build, start or pass the tests, and
# nothing of the toolkit is linked: device/cuda/cuda_driver.h finds libcuda.so.1 when a GPU is first asked for, also in builds without the toolkit,
# and kernels are loaded by it (no runtime of ours beside LibTorch's libcudart.so.13).
#   tidepool_nccl   the header alone, for the trainer's collectives: which libnccl.so.2 a process has is LibTorch's choice (trainer/comm).
# It exists always and is empty where nothing was found; TIDEPOOL_HAS_CUDA and TIDEPOOL_HAS_NCCL say what was.
add_library(tidepool_nccl INTERFACE)
set(TIDEPOOL_HAS_CUDA OFF)
set(TIDEPOOL_HAS_NCCL OFF)
if(TIDEPOOL_CUDA STREQUAL "ON")
  find_package(CUDAToolkit 12.0 REQUIRED)
elseif(TIDEPOOL_CUDA STREQUAL "AUTO")
  find_package(CUDAToolkit 12.0 QUIET)
elseif(NOT TIDEPOOL_CUDA STREQUAL "OFF")
  message(FATAL_ERROR "TIDEPOOL_CUDA is \"${TIDEPOOL_CUDA}\"; it must be AUTO, ON or OFF")
endif()
if(CUDAToolkit_FOUND)
  set(TIDEPOOL_HAS_CUDA ON)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(NCCL_INCLUDE)
endif()
# The CUDA compiler, for kernels: where the toolkit has one, and in builds that run on GPUs. Those for sanitizers and planted bugs do not; what
# a kernel computes is tested there as host code.
set(TIDEPOOL_HAS_NVCC OFF)
if(TIDEPOOL_HAS_CUDA AND NOT TIDEPOOL_SANITIZE AND NOT TIDEPOOL_PLANTED)
  include(Kernels)
endif()
if(TIDEPOOL_HAS_CUDA AND NCCL_INCLUDE)
  set(TIDEPOOL_HAS_NCCL ON)
  target_include_directories(tidepool_nccl SYSTEM INTERFACE ${NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(tidepool_nccl INTERFACE TIDEPOOL_HAS_NCCL=1)
endif()

if(TIDEPOOL_TORCH)
  include(Torch)        # target tidepool_torch: LibTorch of the wheel that scripts/setup installed
endif()

# One line each about what was found, for the eye that reads the configuration.
message(STATUS "Tidepool: ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, sanitizers: ${TIDEPOOL_SANITIZE_TEXT}")
message(STATUS "Tidepool: CUDA toolkit ${CUDAToolkit_VERSION} ${TIDEPOOL_HAS_CUDA} (TIDEPOOL_CUDA=${TIDEPOOL_CUDA}), kernels ${TIDEPOOL_HAS_NVCC}, NCCL ${TIDEPOOL_HAS_NCCL}, LibTorch ${TIDEPOOL_TORCH}")
