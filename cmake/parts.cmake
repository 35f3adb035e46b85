# SPDX-License-Identifier: Apache-2.0
# Which parts are built beside the library: TAMIS_STORE, TAMIS_REDIS, TAMIS_PCRE2, TAMIS_TOOLS
# and TAMIS_TESTS become ON or OFF.
# AUTO is OFF where something is missing, and says so; ON is an error then.

# tamis_choose(OPTION WHAT [MISSING...])
function(tamis_choose option what)
    list(JOIN ARGN ", " missing)
    if(NOT ARGN OR NOT ${option})
        set(chosen ${${option}})
        if(${option} STREQUAL "AUTO")
            set(chosen ON)
        endif()
    elseif(${option} STREQUAL "AUTO")
        message(STATUS "${what}: left out, there is no ${missing}")
        set(chosen OFF)
    else()
        message(FATAL_ERROR "${option}=${${option}}: there is no ${missing}")
    endif()
    set(${option} ${chosen} PARENT_SCOPE)
endfunction()

# tamis_find(NAME HEADER LIBRARY WHAT): sets NAME_INCLUDE_DIR and NAME_LIBRARY, or adds WHAT to `missing`.
macro(tamis_find name header library what)
    find_path(${name}_INCLUDE_DIR ${header})
    find_library(${name}_LIBRARY ${library})
    if(NOT ${name}_INCLUDE_DIR OR NOT ${name}_LIBRARY)
        list(APPEND missing "${what}")
    endif()
endmacro()

# Of xxHash only the header is used.
set(missing "")
if(TAMIS_STORE)
    find_path(XXHASH_INCLUDE_DIR xxhash.h)
    if(NOT XXHASH_INCLUDE_DIR)
        list(APPEND missing "xxHash (Debian: libxxhash-dev)")
    endif()
endif()
tamis_choose(TAMIS_STORE "Store of chunks" ${missing})

set(missing "")
if(NOT TAMIS_STORE)
    set(TAMIS_REDIS OFF)
elseif(TAMIS_REDIS)
    tamis_find(HIREDIS hiredis/hiredis.h hiredis "hiredis (Debian: libhiredis-dev)")
endif()
tamis_choose(TAMIS_REDIS "Tier of a Redis server" ${missing})

set(missing "")
if(NOT TAMIS_MODEL)
    set(TAMIS_PCRE2 OFF)
elseif(TAMIS_PCRE2)
    tamis_find(PCRE2 pcre2.h pcre2-8 "PCRE2 (Debian: libpcre2-dev)")
endif()
tamis_choose(TAMIS_PCRE2 "Vocabularies with merges" ${missing})

set(missing "")
if(TAMIS_TOOLS)
    tamis_find(CJSON cjson/cJSON.h cjson "cJSON (Debian: libcjson-dev)")
    if(NOT TAMIS_MODEL)
        list(APPEND missing "model (TAMIS_MODEL=ON)")
    endif()
endif()
tamis_choose(TAMIS_TOOLS "Command line" ${missing})

# cmocka is found without pkg-config, which GPU machines lack.
set(missing "")
if(TAMIS_TESTS)
    include(CheckLanguage)
    check_language(CXX)
    tamis_find(CMOCKA cmocka.h cmocka "cmocka (Debian: libcmocka-dev)")
    if(NOT CMAKE_CXX_COMPILER)
        list(APPEND missing "C++ compiler (Debian: g++)")
    endif()
endif()
tamis_choose(TAMIS_TESTS "Tests" ${missing})

# Debian's own Python has Debian's NumPy and matplotlib, another one in PATH may not.
if(TAMIS_TESTS)
    find_program(TAMIS_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
    find_program(TAMIS_PYTHON python3)
endif()
