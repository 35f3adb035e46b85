# SPDX-License-Identifier: Apache-2.0
# Writes the text files INPUTS as C arrays, and the table of them, into OUTPUT.
set(arrays "")
set(table "")
foreach(input IN LISTS INPUTS)
    get_filename_component(name ${input} NAME)
    string(MAKE_C_IDENTIFIER ${name} symbol)
    file(READ ${input} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND arrays "static const char ${symbol}[] = {${bytes}0};\n")
    string(APPEND table "    {\"${name}\", ${symbol}},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"host/opencl/opencl.h\"\n${arrays}"
     "const tms_cl_text tms_cl_texts[] = {\n${table}    {NULL, NULL},\n};\n")
