# Part of the installation: writes the headers of `list` (paths from `root`) to `written`, their includes as users see them, and installs these.
file(STRINGS ${list} headers)
foreach(header IN LISTS headers)
  file(READ ${root}/${header} text)
  string(REGEX REPLACE "(#include \")((core|profiler|sim)/)" "\\1shardlens/\\2" text "${text}")
  file(WRITE ${written}/${header} "${text}")
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${include_dir}/${folder} TYPE FILE FILES ${written}/${header})
endforeach()
