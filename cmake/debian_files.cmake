# Run by CPack before it makes Debian packages: each of them gets a changelog, and its manual pages are compressed, as Debian's policy wants.
# The time is $SOURCE_DATE_EPOCH if it is set.

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(pair tools:shardlens app:shardlens-gui dev:libshardlens-dev)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  set(usr ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX})
  if(NOT IS_DIRECTORY ${usr})
    continue()
  endif()
  set(changelog ${usr}/share/doc/${package}/changelog)
  file(WRITE ${changelog} "shardlens (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n  * Version ${CPACK_PACKAGE_VERSION}.\n\n"
       " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(GLOB pages ${usr}/share/man/man1/*.1)
  execute_process(COMMAND gzip -9nf ${changelog} ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
