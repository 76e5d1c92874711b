# CUPTI and NVTX of CUDA, for recording devices:
#   shardlens_cupti   libcupti with its headers, and the headers of nvtx3 (as SYSTEM)
# SHARDLENS_CUDA_DIR is a folder with include/ and lib/: by default nvidia/cu13 of the LibTorch installation. libtorch_cpu needs the same
# library, so that a process has only one.

set(SHARDLENS_CUDA_DIR "" CACHE PATH "Folder with CUDA's include/ and lib/ (CUPTI, NVTX); empty: those installed with LibTorch")
set(cuda_dirs ${SHARDLENS_CUDA_DIR})
if(SHARDLENS_TORCH_DIR AND NOT SHARDLENS_CUDA_DIR)
  get_filename_component(site_packages ${SHARDLENS_TORCH_DIR} DIRECTORY)
  set(cuda_dirs ${site_packages}/nvidia/cu13)
endif()
if(cuda_dirs)
  find_path(Cupti_INCLUDE cupti.h PATHS ${cuda_dirs}/include NO_DEFAULT_PATH)
  find_path(Cupti_NVTX_INCLUDE nvtx3/nvToolsExt.h PATHS ${cuda_dirs}/include NO_DEFAULT_PATH)
  find_path(Cupti_CRT_INCLUDE crt/host_defines.h HINTS ${cuda_dirs}/include)  # only to compile
  find_library(Cupti_LIBRARY NAMES cupti libcupti.so.13 PATHS ${cuda_dirs}/lib ${cuda_dirs}/lib64 NO_DEFAULT_PATH)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Cupti REQUIRED_VARS Cupti_LIBRARY Cupti_INCLUDE Cupti_NVTX_INCLUDE)

if(Cupti_FOUND AND NOT TARGET shardlens_cupti)
  add_library(Cupti::cupti SHARED IMPORTED GLOBAL)
  set_target_properties(Cupti::cupti PROPERTIES IMPORTED_LOCATION ${Cupti_LIBRARY})
  get_filename_component(cupti_dir ${Cupti_LIBRARY} DIRECTORY)
  add_library(shardlens_cupti INTERFACE IMPORTED GLOBAL)
  target_include_directories(shardlens_cupti SYSTEM INTERFACE ${Cupti_INCLUDE} ${Cupti_NVTX_INCLUDE})
  if(Cupti_CRT_INCLUDE)
    target_include_directories(shardlens_cupti SYSTEM INTERFACE ${Cupti_CRT_INCLUDE})
  endif()
  target_link_libraries(shardlens_cupti INTERFACE Cupti::cupti ${CMAKE_DL_LIBS})
  target_link_options(shardlens_cupti INTERFACE "LINKER:-rpath,${cupti_dir}")
endif()
