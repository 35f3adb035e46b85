# SPDX-License-Identifier: Apache-2.0
# Which commit a program is built from. Included by CMake it defines the target `tamis_commit`, whose
# users include <tamis_commit.h> with TAMIS_COMMIT: the commit's hash, with -dirty behind it where
# tracked files differ; "unknown" without git, or where the tree is no repository of its own (an
# unpacked archive). As a script (cmake -DTREE=... -DHEADER=... -P) it writes that header, which
# every build asks for; it is touched only when the commit has changed.
if(NOT CMAKE_SCRIPT_MODE_FILE)
    set(tamis_commit_folder ${PROJECT_BINARY_DIR}/commit)
    add_custom_target(tamis_commit_header BYPRODUCTS ${tamis_commit_folder}/tamis_commit.h
                      COMMAND ${CMAKE_COMMAND} -DTREE=${PROJECT_SOURCE_DIR}
                              -DHEADER=${tamis_commit_folder}/tamis_commit.h
                              -P ${CMAKE_CURRENT_LIST_FILE}
                      COMMENT "Which commit this is" VERBATIM)
    add_library(tamis_commit INTERFACE)
    add_dependencies(tamis_commit tamis_commit_header)
    target_include_directories(tamis_commit INTERFACE ${tamis_commit_folder})
    return()
endif()

set(commit unknown)
find_program(GIT git NO_CACHE)
if(GIT)
    execute_process(COMMAND ${GIT} rev-parse --show-toplevel WORKING_DIRECTORY ${TREE}
                    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    file(REAL_PATH ${TREE} tree)
    if(top)
        file(REAL_PATH ${top} top)
    endif()
    if(top STREQUAL tree)
        execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude *
                        WORKING_DIRECTORY ${TREE} RESULT_VARIABLE failed OUTPUT_VARIABLE said
                        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
        if(NOT failed AND said)
            set(commit ${said})
        endif()
    endif()
endif()
set(text "/* Made by tools/commit.cmake. */\n#define TAMIS_COMMIT \"${commit}\"\n")
if(EXISTS ${HEADER})
    file(READ ${HEADER} before)
endif()
if(NOT text STREQUAL before)
    file(WRITE ${HEADER} ${text})
endif()
