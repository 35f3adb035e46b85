# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, a C file that makes the binary files INPUTS part of the library's read-only data,
# and the table of them. The assembler reads the files: OUTPUT is written anew when one changes.
set(MOST_BYTES 25165824) # 24 MiB: the library serves other devices, too
set(total 0)
set(blocks "")
set(table "")
foreach(input IN LISTS INPUTS)
    get_filename_component(stem ${input} NAME_WE)
    file(SIZE ${input} bytes)
    math(EXPR total "${total} + ${bytes}")
    string(APPEND blocks "IMAGE(${stem}, \"${input}\") /* ${bytes} bytes */\n")
    string(APPEND table "    {\"${stem}\", tms_cu_${stem}_begin, tms_cu_${stem}_end},\n")
endforeach()
if(total GREATER MOST_BYTES)
    message(FATAL_ERROR "CUDA kernels: ${total} bytes in all, the limit is ${MOST_BYTES}")
endif()
message("CUDA kernels: ${total} bytes in all")
file(WRITE ${OUTPUT} "#include \"host/cuda/cuda.h\"
#define LABEL(name) \".globl \" #name \"\\n.hidden \" #name \"\\n\" #name \":\\n\"
#define IMAGE(stem, path)                                                          \\
    extern const unsigned char tms_cu_##stem##_begin[], tms_cu_##stem##_end[];     \\
    __asm__(\".pushsection .rodata\\n.balign 64\\n\" LABEL(tms_cu_##stem##_begin)      \\
            \".incbin \\\"\" path \"\\\"\\n\" LABEL(tms_cu_##stem##_end) \".popsection\\n\");
${blocks}const tms_cu_image tms_cu_images[] = {\n${table}    {NULL, NULL, NULL},\n};\n")
