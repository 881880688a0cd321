# cmake --install: the programs, the client library that a trainer of one's own links, its headers, and its pkg-config file.
include(GNUInstallDirs)

foreach(program memserver memctl trainer)
  if(TARGET ${program})
    # LibTorch stays where scripts/setup put it: the installed trainer keeps the folders it was linked from.
    set_target_properties(${program} PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()

if(TARGET tidepool_client AND TARGET tidepool_shm)
  install(TARGETS tidepool_client tidepool_shm tidepool_base ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  foreach(room base shm client)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tidepool FILES_MATCHING PATTERN "*.h")
  endforeach()
  # Relative, so that `cmake --install --prefix` and a moved tree work.
  file(RELATIVE_PATH TIDEPOOL_PC_TO_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/tidepool-client.pc.in ${CMAKE_BINARY_DIR}/tidepool-client.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/tidepool-client.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
