# SPDX-License-Identifier: Apache-2.0
# Writes the files INPUTS of the page as C arrays with their sizes into OUTPUT. Bytes are character
# constants, for 0xe2 does not fit into a char that has a sign.
set(arrays "")
foreach(input IN LISTS INPUTS)
    get_filename_component(name ${input} NAME)
    string(MAKE_C_IDENTIFIER "serve_${name}" symbol)
    file(READ ${input} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND arrays "const char ${symbol}[] = {${bytes}0};\n"
                         "const size_t ${symbol}_bytes = sizeof ${symbol} - 1;\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"serve/page.h\"\n${arrays}")
