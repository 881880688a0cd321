# The CUDA language, for kernels. Sets TIDEPOOL_HAS_NVCC; nothing here needs a GPU or a driver.
#
#   tidepool_kernels(NAME SOURCES a.cu ... [OPTIONS x...])   a static library of kernels, linked with the static runtime of tidepool_cuda
#
# Code for what is used (sm_80: A100; sm_90: H100, H200) and, as PTX, for what comes later: the driver compiles that at first use.
find_program(TIDEPOOL_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} DOC "The CUDA compiler, beside the toolkit's headers")
if(NOT TIDEPOOL_NVCC)
  message(STATUS "Tidepool: the CUDA toolkit has no nvcc; kernels are left out")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${TIDEPOOL_NVCC})
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 90-virtual)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # tidepool_cuda brings it, hidden from LibTorch
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
enable_language(CUDA)
# CMake 3.25 does not know that nvcc speaks C++20 (which C++ files of this project are in, and so kernels).
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")
set(TIDEPOOL_HAS_NVCC ON)

# The project's warnings are the host compiler's, and go through nvcc to it; -Wpedantic would report the code that nvcc itself writes.
function(tidepool_kernels name)
  cmake_parse_arguments(ARG "" "" "SOURCES;OPTIONS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>)
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS} --Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
  target_link_libraries(${name} PRIVATE tidepool_cuda)
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
endfunction()
