# Imported targets for LibTorch from the PyPI wheel of torch:
#   shardlens_torch_cpu   libtorch, libtorch_cpu, libc10 with their headers (as SYSTEM)
#   shardlens_cuda_runtime  the CUDA runtime and NVRTC of the nvidia-* wheels; only if the wheel has CUDA
#   shardlens_torch_cuda  libtorch_cuda, libc10_cuda, and shardlens_cuda_runtime
# find_package(Torch) cannot be used: with a CUDA wheel it enables the CUDA language and probes for GPUs.
# SHARDLENS_TORCH_DIR is the directory of the installed `torch` package; scripts/setup passes it.

set(SHARDLENS_TORCH_DIR "$ENV{SHARDLENS_TORCH_DIR}" CACHE PATH "Directory of the installed Python package torch (with include/ and lib/)")
find_library(LibTorchWheel_TORCH_CPU torch_cpu PATHS ${SHARDLENS_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_path(LibTorchWheel_INCLUDE ATen/ATen.h PATHS ${SHARDLENS_TORCH_DIR}/include NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorchWheel
  REQUIRED_VARS LibTorchWheel_TORCH_CPU LibTorchWheel_INCLUDE
  REASON_FAILURE_MESSAGE "run scripts/setup, or set SHARDLENS_TORCH_DIR to an installed torch 2.11.0. -DSHARDLENS_ENGINE=OFF builds without it")

if(LibTorchWheel_FOUND AND NOT TARGET shardlens_torch_cpu)
  foreach(name torch torch_cpu c10)
    add_library(LibTorchWheel::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(LibTorchWheel::${name} PROPERTIES IMPORTED_LOCATION ${SHARDLENS_TORCH_DIR}/lib/lib${name}.so)
  endforeach()
  get_filename_component(site_packages ${SHARDLENS_TORCH_DIR} DIRECTORY)
  file(GLOB nvidia_libs LIST_DIRECTORIES true ${site_packages}/nvidia/*/lib)

  add_library(shardlens_torch_cpu INTERFACE IMPORTED GLOBAL)
  target_include_directories(shardlens_torch_cpu SYSTEM INTERFACE ${LibTorchWheel_INCLUDE}
                                                                  ${LibTorchWheel_INCLUDE}/torch/csrc/api/include)
  # libtorch.so is not linked: it only loads all backends by DT_NEEDED (libtorch_cuda among them), which takes time at start.
  target_link_libraries(shardlens_torch_cpu INTERFACE LibTorchWheel::torch_cpu LibTorchWheel::c10)
  target_link_options(shardlens_torch_cpu INTERFACE "LINKER:-rpath,${SHARDLENS_TORCH_DIR}/lib")
  foreach(dir ${nvidia_libs})
    target_link_options(shardlens_torch_cpu INTERFACE "LINKER:-rpath-link,${dir}")
  endforeach()
  # The wheel's own fmt headers (a version other than Debian's, in another inline namespace) are first on the include path.
  target_compile_definitions(shardlens_torch_cpu INTERFACE USE_C10D USE_DISTRIBUTED FMT_HEADER_ONLY)

  if(EXISTS ${SHARDLENS_TORCH_DIR}/lib/libtorch_cuda.so AND NOT TARGET shardlens_torch_cuda)
    foreach(name torch_cuda c10_cuda)
      add_library(LibTorchWheel::${name} SHARED IMPORTED GLOBAL)
      set_target_properties(LibTorchWheel::${name} PROPERTIES IMPORTED_LOCATION ${SHARDLENS_TORCH_DIR}/lib/lib${name}.so)
    endforeach()
    foreach(name cudart nvrtc)
      add_library(LibTorchWheel::${name} SHARED IMPORTED GLOBAL)
      set_target_properties(LibTorchWheel::${name} PROPERTIES IMPORTED_LOCATION ${site_packages}/nvidia/cu13/lib/lib${name}.so.13)
    endforeach()
    add_library(shardlens_cuda_runtime INTERFACE IMPORTED GLOBAL)
    target_link_libraries(shardlens_cuda_runtime INTERFACE LibTorchWheel::cudart LibTorchWheel::nvrtc)
    target_include_directories(shardlens_cuda_runtime SYSTEM INTERFACE ${site_packages}/nvidia/cu13/include)
    # What these headers include has packages of its own. It is only needed to compile.
    find_path(LibTorchWheel_CRT_INCLUDE crt/host_defines.h HINTS ${site_packages}/nvidia/cu13/include)
    find_path(LibTorchWheel_CCCL_INCLUDE nv/target HINTS ${site_packages}/nvidia/cu13/include/cccl)
    foreach(dir ${LibTorchWheel_CRT_INCLUDE} ${LibTorchWheel_CCCL_INCLUDE})
      if(dir)
        target_include_directories(shardlens_cuda_runtime SYSTEM INTERFACE ${dir})
      endif()
    endforeach()
    target_link_options(shardlens_cuda_runtime INTERFACE "LINKER:-rpath,${site_packages}/nvidia/cu13/lib")
    add_library(shardlens_torch_cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(shardlens_torch_cuda INTERFACE shardlens_torch_cpu LibTorchWheel::torch_cuda LibTorchWheel::c10_cuda shardlens_cuda_runtime)
    target_include_directories(shardlens_torch_cuda SYSTEM INTERFACE ${site_packages}/nvidia/nccl/include)
  endif()
endif()
