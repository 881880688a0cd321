# cpack -G DEB: tidepool (memserver, memctl, the service) and tidepool-dev (the client library). The trainer is in neither: it is linked with
# the LibTorch of a Python wheel, which no package of Debian brings, and is installed from a build (cmake --install).
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tidepool)
set(CPACK_PACKAGE_CONTACT "Tidepool developers <tidepool@localhost>" CACHE STRING "Maintainer of the packages")
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL server configuration dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_SERVER_GROUP program)
set(CPACK_COMPONENT_CONFIGURATION_GROUP program)
set(CPACK_COMPONENT_DEV_GROUP dev)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)  # xz takes ten times as long

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME tidepool)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "One memserver a node owns the host memory and the optimizer of training jobs,
 admits them with exact numbers, and keeps their states when processes die.
 memctl looks into it and changes what jobs may have.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA
    "${TIDEPOOL_PACKAGING}/debian/conffiles;${TIDEPOOL_PACKAGING}/debian/postinst;${TIDEPOOL_PACKAGING}/debian/prerm;${TIDEPOOL_PACKAGING}/debian/postrm")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME tidepool-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libspdlog-dev, libisal-dev")
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEV_DESCRIPTION "The client library: static library, headers and pkg-config file for programs that keep their model
 states in a memserver.")
include(CPack)

# All that goes into them, and then both packages.
if(TARGET told_by_memserver)
  add_custom_target(packages
    COMMAND ${CMAKE_CPACK_COMMAND} -G DEB
    DEPENDS memserver memctl told_by_memserver told_by_memctl tidepool_client tidepool_shm tidepool_base
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR} USES_TERMINAL VERBATIM)
endif()
