# cmake --install: the programs with their manual pages and completions, the service, what belongs to monitoring and schedulers, and the client
# library that a trainer of one's own links, with headers and pkg-config file; with LibTorch also the library for modules of one's own. What of
# it is in which .deb: Package.cmake.
include(GNUInstallDirs)

# What a program says of itself: its manual page from --help, its completions from the tables behind that.
function(tidepool_told_by program component)
  if(TIDEPOOL_SUITE OR TIDEPOOL_PLANTED)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/told)
  add_custom_command(
    OUTPUT ${folder}/${program}.1 ${folder}/${program}.bash ${folder}/_${program} ${folder}/${program}.fish
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND $<TARGET_FILE:${program}> completion bash > ${folder}/${program}.bash
    COMMAND $<TARGET_FILE:${program}> completion zsh > ${folder}/_${program}
    COMMAND $<TARGET_FILE:${program}> completion fish > ${folder}/${program}.fish
    COMMAND /usr/bin/python3 -B ${CMAKE_SOURCE_DIR}/packaging/make_man.py $<TARGET_FILE:${program}> ${folder}/${program}.1
    DEPENDS ${program} ${CMAKE_SOURCE_DIR}/packaging/make_man.py
    COMMENT "Manual page and completions of ${program}" VERBATIM)
  add_custom_target(told_by_${program} ALL DEPENDS ${folder}/${program}.1)
  install(FILES ${folder}/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES ${folder}/${program}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${program} COMPONENT ${component})
  install(FILES ${folder}/_${program} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT ${component})
  install(FILES ${folder}/${program}.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT ${component})
endfunction()

foreach(program memserver memctl)
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
  tidepool_told_by(${program} server)
endforeach()
if(TARGET trainer)
  # LibTorch stays where scripts/setup put it: the installed trainer keeps the folders it was linked from.
  set_target_properties(trainer PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
  # The trainer starts the process that writes checkpoints from beside itself.
  install(TARGETS trainer tidepool-checkpoint RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT trainer)
  tidepool_told_by(trainer trainer)
endif()
# find_package(Tidepool): the library for programs that train a LibTorch module of their own, found from wherever the prefix was moved to.
if(TARGET tidepool_train)
  set_target_properties(tidepool_train PROPERTIES INSTALL_RPATH_USE_LINK_PATH TRUE)
  install(TARGETS tidepool_train LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT trainer)
  install(FILES ${CMAKE_SOURCE_DIR}/trainer/module/tidepool/train.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tidepool COMPONENT trainer)
  include(CMakePackageConfigHelpers)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TidepoolConfig.cmake.in ${CMAKE_BINARY_DIR}/TidepoolConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tidepool PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/TidepoolConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/TidepoolConfig.cmake ${CMAKE_BINARY_DIR}/TidepoolConfigVersion.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tidepool COMPONENT trainer)
endif()

set(TIDEPOOL_PACKAGING ${CMAKE_SOURCE_DIR}/packaging)
install(FILES ${TIDEPOOL_PACKAGING}/systemd/tidepool-memserver.service DESTINATION lib/systemd/system COMPONENT server)
install(FILES ${TIDEPOOL_PACKAGING}/systemd/tidepool-sysusers.conf DESTINATION lib/sysusers.d RENAME tidepool.conf COMPONENT server)
foreach(folder monitoring slurm kubernetes)
  install(DIRECTORY ${TIDEPOOL_PACKAGING}/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/tidepool COMPONENT server USE_SOURCE_PERMISSIONS)
endforeach()
install(FILES ${TIDEPOOL_PACKAGING}/memserver.toml DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT server)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT server)
# The package's own configuration; `cmake --install` leaves /etc alone.
install(FILES ${TIDEPOOL_PACKAGING}/memserver.toml DESTINATION /etc/tidepool COMPONENT configuration EXCLUDE_FROM_ALL)

install(TARGETS tidepool_client tidepool_shm tidepool_base ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
foreach(room base shm client)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tidepool COMPONENT dev FILES_MATCHING PATTERN "*.h"
          PATTERN memctl EXCLUDE PATTERN admin EXCLUDE)
endforeach()
# Relative, so that `cmake --install --prefix` and a moved tree work.
file(RELATIVE_PATH TIDEPOOL_PC_TO_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tidepool-client.pc.in ${CMAKE_BINARY_DIR}/tidepool-client.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tidepool-client.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
