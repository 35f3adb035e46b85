# SPDX-License-Identifier: Apache-2.0
# `cpack` makes three Debian packages, one of each component: libtamis2, libtamis-dev, tamis. What
# their programs link becomes Depends (dpkg-shlibdeps); what is opened at run time is recommended.
# tools/deb.sh builds them as Debian lays files out.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The authors of tamis <maintainers@tamis.invalid>")
set(CPACK_PACKAGE_VENDOR "tamis")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL ${TAMIS_COMPONENTS})
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_CURRENT_BINARY_DIR})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(same "(= ${PROJECT_VERSION})")
set(what "tamis keeps the part of a KV cache that a query needs: it writes, scores,
selects, attends, evicts and compacts pages on NVIDIA GPUs by CUDA, on any
OpenCL device or in plain C, behind one C API.")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${TAMIS_PACKAGE_runtime})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "pocl-opencl-icd | opencl-icd, libclblast1")
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "sparse-attention pipeline of LLM inference, library
${what}")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME ${TAMIS_PACKAGE_development})
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${TAMIS_PACKAGE_runtime} ${same}")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "sparse-attention pipeline of LLM inference, headers
${what}
.
This package holds the headers, examples, and what CMake and pkg-config read.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME ${TAMIS_PACKAGE_tools})
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${TAMIS_PACKAGE_runtime} ${same}")
set(CPACK_DEBIAN_TOOLS_DESCRIPTION "sparse-attention pipeline of LLM inference, command line
${what}
.
This package holds the program tamis: it lists devices, runs models, measures
and evaluates.")
if(TAMIS_SERVE)
    set(scripts ${CMAKE_CURRENT_SOURCE_DIR}/cmake/debian)
    set(CPACK_DEBIAN_TOOLS_PACKAGE_CONTROL_EXTRA
        "${scripts}/postinst;${scripts}/prerm;${scripts}/postrm")
    string(APPEND CPACK_DEBIAN_TOOLS_DESCRIPTION
           "\nIt also serves a model over HTTP, if asked by systemd as tamis-serve.service.")
endif()

include(CPack)
