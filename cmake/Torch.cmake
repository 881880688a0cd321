# The door to LibTorch: the C++ libraries inside the torch wheel that scripts/setup unpacked under ${TIDEPOOL_DEPS}/venv.
#
#   tidepool_torch         include folders and the two CPU libraries. find_package(Torch) is avoided on purpose: the wheel is a CUDA build, and
#                          its package file asks for the whole CUDA toolkit even though the trainer's host rooms need none of it.
#   tidepool_torch_pch     one precompiled set of torch headers, built once and shared.
#   tidepool_torch_room(T) call it for each library or program T whose .cpp files include torch headers.
file(GLOB TIDEPOOL_SITE_PACKAGES ${TIDEPOOL_DEPS}/venv/lib/python3*/site-packages)
list(LENGTH TIDEPOOL_SITE_PACKAGES TIDEPOOL_SITE_PACKAGES_COUNT)
if(TIDEPOOL_SITE_PACKAGES_COUNT GREATER 0)
  list(GET TIDEPOOL_SITE_PACKAGES 0 TIDEPOOL_SITE_PACKAGES)
else()
  set(TIDEPOOL_SITE_PACKAGES ${TIDEPOOL_DEPS}/venv/lib/python3/site-packages)  # only to be named in the error below
endif()
set(TIDEPOOL_TORCH_DIR ${TIDEPOOL_SITE_PACKAGES}/torch)
set(TIDEPOOL_CUDART_DIR ${TIDEPOOL_SITE_PACKAGES}/nvidia/cu13/lib)  # libtorch_cpu.so needs libcudart.so.13 and libcupti.so.13 from here

foreach(file ${TIDEPOOL_TORCH_DIR}/lib/libtorch_cpu.so ${TIDEPOOL_TORCH_DIR}/lib/libc10.so
             ${TIDEPOOL_TORCH_DIR}/include/torch/csrc/api/include/torch/torch.h
             ${TIDEPOOL_CUDART_DIR}/libcudart.so.13 ${TIDEPOOL_CUDART_DIR}/libcupti.so.13)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "LibTorch is missing: ${file} does not exist.\n"
      "TIDEPOOL_DEPS is ${TIDEPOOL_DEPS}. Run scripts/setup to fill it, point TIDEPOOL_DEPS at a folder that it filled before, "
      "or build without the trainer program: -DTIDEPOOL_TORCH=OFF.")
  endif()
endforeach()

foreach(library torch_cpu c10)
  add_library(tidepool_wheel_${library} SHARED IMPORTED GLOBAL)
  set_target_properties(tidepool_wheel_${library} PROPERTIES IMPORTED_LOCATION ${TIDEPOOL_TORCH_DIR}/lib/lib${library}.so)
endforeach()

# Its release, for those who link our libraries with it.
set(TIDEPOOL_TORCH_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${TIDEPOOL_TORCH_DIR}/include/torch/headeronly/version.h line REGEX "^#define TORCH_VERSION_${part} [0-9]+")
  string(REGEX REPLACE ".* " "" line "${line}")
  list(APPEND TIDEPOOL_TORCH_VERSION ${line})
endforeach()
string(REPLACE ";" "." TIDEPOOL_TORCH_VERSION "${TIDEPOOL_TORCH_VERSION}")

add_library(tidepool_torch INTERFACE)
target_include_directories(tidepool_torch SYSTEM INTERFACE
  ${TIDEPOOL_TORCH_DIR}/include ${TIDEPOOL_TORCH_DIR}/include/torch/csrc/api/include)
target_link_libraries(tidepool_torch INTERFACE tidepool_wheel_torch_cpu tidepool_wheel_c10)
# The wheel was compiled with NDEBUG, and some of its classes (RecordFunction) have other members without it.
target_compile_definitions(tidepool_torch INTERFACE NDEBUG)
# rpath for the loader, rpath-link for linkers that follow the libraries' own dependencies.
target_link_options(tidepool_torch INTERFACE
  LINKER:-rpath,${TIDEPOOL_TORCH_DIR}/lib LINKER:-rpath,${TIDEPOOL_CUDART_DIR} LINKER:-rpath-link,${TIDEPOOL_CUDART_DIR})

# The umbrella <torch/torch.h> is left out: GCC instantiates its templates again at the end of every file that uses it. Compile time of a
# file of two lines (GCC 12, one core): torch.h 34 s, torch.h precompiled 14 s, the headers below 21 s, the headers below precompiled 5 s.
set(TIDEPOOL_TORCH_HEADERS
  <ATen/ATen.h> <torch/csrc/autograd/autograd.h> <torch/csrc/autograd/custom_function.h> <torch/nn/module.h>
  <torch/nn/utils/clip_grad.h> <torch/optim/adamw.h> <torch/utils.h>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_pch.cpp CONTENT "// Holds the precompiled torch headers.\n")
add_library(tidepool_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
target_link_libraries(tidepool_torch_pch PRIVATE tidepool_torch tidepool_flags)
# A precompiled header is valid only for the flags that it was made with: every user, program or library, is compiled with -fPIC.
target_compile_options(tidepool_torch_pch PRIVATE -fPIC)
target_precompile_headers(tidepool_torch_pch PRIVATE ${TIDEPOOL_TORCH_HEADERS})

function(tidepool_torch_room target)
  target_link_libraries(${target} PRIVATE tidepool_torch)
  target_compile_options(${target} PRIVATE -fPIC)
  tidepool_precompiled(${target} tidepool_torch_pch)
  # Even precompiled, the headers take five seconds of each file: the files of a room are compiled together, and share their unnamed namespace.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  # Tests are optimised as little as the precompiled header allows.
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/tests/")
    target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  endif()
endfunction()
message(STATUS "Tidepool: LibTorch ${TIDEPOOL_TORCH_DIR}")
