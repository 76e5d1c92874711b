# The libraries that others link, as Shardlens::NAME, and their installation: `cmake --install BUILD [--component NAME]` with the components
#   tools   the program shardlens, its completions and manual pages
#   engine  shardlens-worker, with which it can capture; uses LibTorch from where it was linked
#   app     shardlens-gui
#   dev     libraries, headers, the files for find_package(Shardlens)
# Others find the same names in a build and after an installation.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Shardlens)

# shardlens_exported(SET LIBRARY...)      these libraries are installed and in the export set
function(shardlens_exported set)
  if(SHARDLENS_INSTALL)
    install(TARGETS ${ARGN} EXPORT ${set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  endif()
endfunction()

# shardlens_interface(NAME SET LIBRARY...)      Shardlens::NAME, which links these libraries
function(shardlens_interface name set)
  add_library(shardlens_interface_${name} INTERFACE)
  set_target_properties(shardlens_interface_${name} PROPERTIES EXPORT_NAME ${name})
  target_link_libraries(shardlens_interface_${name} INTERFACE ${ARGN})
  add_library(Shardlens::${name} ALIAS shardlens_interface_${name})
  shardlens_exported(${set} shardlens_interface_${name})
endfunction()

# shardlens_install_headers(FILE...)      paths from the root; in the installed ones, "core/…" becomes "shardlens/core/…"
function(shardlens_install_headers)
  if(NOT SHARDLENS_INSTALL)
    return()
  endif()
  list(JOIN ARGN "\n" files)
  string(SHA1 key "${files}")
  set(list ${PROJECT_BINARY_DIR}/installed_headers_${key}.txt)
  file(WRITE ${list} "${files}")
  install(CODE "set(root \"${PROJECT_SOURCE_DIR}\")\nset(list \"${list}\")\nset(written \"${PROJECT_BINARY_DIR}/installed_headers\")
set(include_dir \"${CMAKE_INSTALL_INCLUDEDIR}/shardlens\")" COMPONENT dev)
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake COMPONENT dev)
endfunction()

# The headers directly in these folders, or with RECURSE also below them.
function(shardlens_headers_of out)
  cmake_parse_arguments(ARG "" "" "FOLDERS" ${ARGN})
  set(found)
  foreach(folder IN LISTS ARG_FOLDERS)
    file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.h)
    list(APPEND found ${headers})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

shardlens_exported(ShardlensTargets shardlens_headers shardlens_base shardlens_files shardlens_mesh shardlens_json shardlens_tree shardlens_layout shardlens_plan shardlens_workload shardlens_edits shardlens_model shardlens_schedule shardlens_trace shardlens_analysis shardlens_check
                   shardlens_report shardlens_hardware shardlens_cost shardlens_sim_memory shardlens_sim_engine shardlens_calibrate shardlens_scenario
                   shardlens_validate shardlens_search shardlens_advise)
shardlens_interface(analysis ShardlensTargets shardlens_report shardlens_check shardlens_analysis shardlens_trace)
shardlens_interface(sim ShardlensTargets shardlens_advise shardlens_search shardlens_validate shardlens_scenario)
shardlens_headers_of(headers FOLDERS core/base core/files core/mesh core/json core/tree core/layout core/plan core/workload core/edits core/model core/schedule profiler/trace profiler/analysis profiler/check profiler/report sim)
shardlens_install_headers(${headers})

if(SHARDLENS_ENGINE)
  shardlens_exported(ShardlensEngineTargets shardlens_composable shardlens_module shardlens_dist shardlens_fsdp shardlens_replicate shardlens_weights shardlens_checkpoint
                     shardlens_kernels shardlens_models shardlens_train shardlens_record shardlens_record_device shardlens_record_torch)
  if(TARGET shardlens_engine)
    shardlens_exported(ShardlensEngineTargets shardlens_engine)
  endif()
  shardlens_interface(fsdp ShardlensEngineTargets shardlens_fsdp shardlens_dist)
  shardlens_interface(replicate ShardlensEngineTargets shardlens_replicate shardlens_dist)
  shardlens_interface(record ShardlensEngineTargets shardlens_record_torch)
  shardlens_headers_of(headers FOLDERS core/composable core/module core/checkpoint core/dist core/fsdp core/replicate core/models core/weights core/train profiler/record)
  shardlens_install_headers(${headers})
  if(TARGET shardlens_cuda AND SHARDLENS_INSTALL)
    install(TARGETS shardlens_cuda LIBRARY DESTINATION lib/shardlens COMPONENT engine)
  endif()
endif()

if(NOT SHARDLENS_INSTALL)
  return()
endif()
set(SHARDLENS_BUILT_FOR_TORCH "")
if(SHARDLENS_ENGINE)
  set(SHARDLENS_BUILT_FOR_TORCH ${SHARDLENS_TORCH_VERSION})
  install(EXPORT ShardlensEngineTargets NAMESPACE Shardlens:: DESTINATION ${package_dir} COMPONENT dev)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorchWheel.cmake ${PROJECT_SOURCE_DIR}/cmake/FindCupti.cmake DESTINATION ${package_dir} COMPONENT dev)
endif()
install(EXPORT ShardlensTargets NAMESPACE Shardlens:: DESTINATION ${package_dir} COMPONENT dev)
set(SHARDLENS_USES_CUPTI OFF)
if(TARGET shardlens_cupti)
  set(SHARDLENS_USES_CUPTI ON)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/ShardlensConfig.cmake.in ${PROJECT_BINARY_DIR}/ShardlensConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ShardlensConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ShardlensConfig.cmake ${PROJECT_BINARY_DIR}/ShardlensConfigVersion.cmake DESTINATION ${package_dir} COMPONENT dev)
