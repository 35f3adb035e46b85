# SPDX-License-Identifier: Apache-2.0
# The shared library LIBRARY needs none of the libraries that the regular expression UNWANTED matches,
# and does need the one that WANTED matches.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${READELF} -d ${LIBRARY} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "\\(NEEDED\\)[^\n]*" needed "${dynamic}")
message("${needed}")
if(NOT needed MATCHES "${WANTED}")
    message(FATAL_ERROR "${LIBRARY} does not need ${WANTED}")
endif()
if(needed MATCHES "${UNWANTED}")
    message(FATAL_ERROR "${LIBRARY} needs ${CMAKE_MATCH_0}")
endif()
