# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` writes, in three components, of which each becomes a Debian package: the
# libraries (runtime), what is needed to build with them (development), the command line (tools).
include(CMakePackageConfigHelpers)

# Libraries of this project that others link: tamis::tamis, and tamis::model where it is a target.
set(TAMIS_LIBRARIES tamis)
if(TARGET tamis_model)
    list(APPEND TAMIS_LIBRARIES tamis_model)
    set_target_properties(tamis_model PROPERTIES EXPORT_NAME model INSTALL_RPATH "\$ORIGIN")
endif()

# What a program links beside a static library; a shared one brings it along. Names of targets and
# of libraries, as tamis_objects links them, without the marks of the folders that they come from.
get_target_property(needed tamis_objects INTERFACE_LINK_LIBRARIES)
list(FILTER needed EXCLUDE REGEX "^::@")
list(REMOVE_DUPLICATES needed)
set(TAMIS_FIND_DEPENDENCIES "")
set(private "")
foreach(library IN LISTS needed)
    if(library STREQUAL "Threads::Threads")
        string(APPEND TAMIS_FIND_DEPENDENCIES "find_dependency(Threads)\n")
        string(APPEND private " -pthread")
    elseif(library STREQUAL "OpenCL::OpenCL")
        string(APPEND TAMIS_FIND_DEPENDENCIES "find_dependency(OpenCL)\n")
        string(APPEND private " -lOpenCL")
    elseif(TARGET ${library} OR library MATCHES ":|<")
        message(FATAL_ERROR "cmake/install.cmake: how do programs link ${library}?")
    else()
        string(APPEND private " -l${library}")
    endif()
endforeach()
if(TAMIS_KIND STREQUAL "STATIC")
    target_link_libraries(tamis INTERFACE "$<INSTALL_INTERFACE:${needed}>")
else()
    set(TAMIS_FIND_DEPENDENCIES "")
endif()

# ---- Libraries and headers ------------------------------------------------------------------------

install(TARGETS ${TAMIS_LIBRARIES} EXPORT tamis-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
                NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
set(left_out "")
if(NOT TAMIS_STORE)
    set(left_out PATTERN store.h EXCLUDE PATTERN blend.h EXCLUDE PATTERN blend_model.h EXCLUDE
                 PATTERN blend_trials.h EXCLUDE PATTERN record.h EXCLUDE)
endif()
if(DEFINED TAMIS_MODEL AND NOT TAMIS_MODEL)
    list(APPEND left_out PATTERN batch.h EXCLUDE PATTERN model.h EXCLUDE PATTERN blend_model.h
                         EXCLUDE PATTERN record.h EXCLUDE PATTERN sample.h EXCLUDE PATTERN vocab.h EXCLUDE)
endif()
install(DIRECTORY lib/include/tamis DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
        ${left_out})

# ---- For CMake: find_package(tamis) ---------------------------------------------------------------

set(config ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${config} COMPONENT development)
configure_package_config_file(cmake/tamis-config.cmake.in tamis-config.cmake
                              INSTALL_DESTINATION ${config})
write_basic_package_version_file(tamis-config-version.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tamis-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tamis-config-version.cmake
        DESTINATION ${config} COMPONENT development)

# ---- For pkg-config -------------------------------------------------------------------------------

# The prefix follows the file, so that an installed copy may be moved.
set(TAMIS_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
    string(REGEX REPLACE "/$" "" up ${up})
    set(TAMIS_PC_PREFIX "\${pcfiledir}/${up}")
endif()
foreach(variable LIBDIR INCLUDEDIR)
    set(TAMIS_PC_${variable} "${CMAKE_INSTALL_${variable}}")
    if(NOT IS_ABSOLUTE "${TAMIS_PC_${variable}}")
        string(PREPEND TAMIS_PC_${variable} "\${prefix}/")
    endif()
endforeach()

# tamis_install_pc(NAME LIBRARY DESCRIPTION REQUIRES PRIVATE)
function(tamis_install_pc TAMIS_PC_NAME TAMIS_PC_LIBRARY TAMIS_PC_DESCRIPTION TAMIS_PC_REQUIRES
         TAMIS_PC_PRIVATE)
    configure_file(cmake/tamis.pc.in ${TAMIS_PC_NAME}.pc @ONLY)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${TAMIS_PC_NAME}.pc
            DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endfunction()
tamis_install_pc(tamis tamis "The sparse-attention pipeline of LLM inference" "" "${private}")
if(TARGET tamis_model)
    set(private " -lm")
    if(TAMIS_PCRE2)
        string(APPEND private " -lpcre2-8")
    endif()
    tamis_install_pc(tamis-model tamis_model "Models from GGUF files, run by tamis"
                     "tamis = ${PROJECT_VERSION}" "${private}")
endif()

# ---- The command line -----------------------------------------------------------------------------

if(TARGET tamis_cli)
    # It finds the library where it was installed beside it.
    file(RELATIVE_PATH to_libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(tamis_cli PROPERTIES INSTALL_RPATH "\$ORIGIN/${to_libraries}")
    install(TARGETS tamis_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
    install(FILES docs/man/tamis.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
    install(FILES tools/tamis/completion/tamis.bash RENAME tamis COMPONENT tools
            DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions)
    install(FILES tools/tamis/completion/tamis.fish COMPONENT tools
            DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d)
    # Debian's zsh reads site-functions in /usr/local/share, but vendor-completions in /usr/share, which is
    # where packages install: the prefix is known then.
    install(CODE "
        set(folder site-functions)
        if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
            set(folder vendor-completions)
        endif()
        file(INSTALL \"${CMAKE_CURRENT_SOURCE_DIR}/tools/tamis/completion/_tamis\"
             DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATAROOTDIR}/zsh/\${folder}\")
    " COMPONENT tools)
endif()

# ---- The service ----------------------------------------------------------------------------------

# systemd reads units in lib/systemd/system of /usr/local and of /usr. The unit names the program by its
# path, so it is written where the prefix is known.
if(TARGET tamis_cli AND TAMIS_SERVE)
    install(CODE "
        set(TAMIS_PROGRAM \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/tamis\")
        set(TAMIS_DOC \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATAROOTDIR}/doc/${PROJECT_NAME}\")
        configure_file(\"${CMAKE_CURRENT_SOURCE_DIR}/tools/tamis/serve/tamis-serve.service.in\"
                       \"${CMAKE_CURRENT_BINARY_DIR}/tamis-serve.service\" @ONLY)
        file(INSTALL \"${CMAKE_CURRENT_BINARY_DIR}/tamis-serve.service\"
             DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
    " COMPONENT tools)
    install(FILES docs/serve.md COMPONENT tools
            DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${PROJECT_NAME})
endif()

# ---- Licence --------------------------------------------------------------------------------------

# Debian's packages have each a copyright file under their own name.
set(TAMIS_PACKAGE_runtime lib${PROJECT_NAME}${TAMIS_SOVERSION})
set(TAMIS_PACKAGE_development lib${PROJECT_NAME}-dev)
set(TAMIS_PACKAGE_tools ${PROJECT_NAME})
set(TAMIS_COMPONENTS runtime development)
if(TARGET tamis_cli)
    list(APPEND TAMIS_COMPONENTS tools)
endif()
foreach(component IN LISTS TAMIS_COMPONENTS)
    install(FILES cmake/copyright COMPONENT ${component}
            DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${TAMIS_PACKAGE_${component}})
endforeach()
install(DIRECTORY docs/examples COMPONENT development
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${TAMIS_PACKAGE_development})

if(PROJECT_IS_TOP_LEVEL AND TAMIS_KIND STREQUAL "SHARED")
    include(cmake/packages.cmake)
endif()
