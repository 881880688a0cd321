# The CUDA compiler, for kernels. Sets TIDEPOOL_HAS_NVCC; nothing here needs a GPU, a driver or the CUDA runtime: what it makes is loaded by
# the driver (device/kernel.h).
#
#   tidepool_fatbin(OUTPUT a.fatbin SOURCE a.cu [OPTIONS x...])   code of one source, for GPUs
#
# Code for what is used (sm_80: A100; sm_90: H100, H200) and, as PTX, for what comes later: the driver compiles that at first use.
find_program(TIDEPOOL_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} DOC "The CUDA compiler, beside the toolkit's headers")
if(NOT TIDEPOOL_NVCC)
  message(STATUS "Tidepool: the CUDA toolkit has no nvcc; kernels are left out")
  return()
endif()
set(TIDEPOOL_HAS_NVCC ON)

function(tidepool_fatbin)
  cmake_parse_arguments(ARG "" "OUTPUT;SOURCE" "OPTIONS" ${ARGN})
  add_custom_command(
    OUTPUT ${ARG_OUTPUT}
    COMMAND ${TIDEPOOL_NVCC} -fatbin -std=c++20 -O3 -ccbin ${CMAKE_CXX_COMPILER} ${ARG_OPTIONS} --Werror=all-warnings
            -Xcompiler=-Wall,-Wextra,-Werror -gencode=arch=compute_80,code=sm_80 "-gencode=arch=compute_90,code=[sm_90,compute_90]"
            -I${CMAKE_SOURCE_DIR} -MD -MF ${ARG_OUTPUT}.d -o ${ARG_OUTPUT} ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SOURCE}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SOURCE} DEPFILE ${ARG_OUTPUT}.d COMMENT "Compiling ${ARG_SOURCE} for GPUs" VERBATIM)
endfunction()
