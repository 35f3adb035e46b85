# SPDX-License-Identifier: Apache-2.0
# The tiers of tests, which are labels of ctest. `full` is what tools/test.sh runs. `quick` is its part
# for daily work: under three minutes on two cores, with no kernel compiled before. `long` is what
# tools/test.sh --long runs beside full: it costs minutes, and what it has found, a test of full finds
# too. Each folder that adds tests ends with tamis_tiers().
include_guard()

# Names of tests, as regular expressions.
#
# On the reference every public call, policy and file; on OpenCL and CUDA the smoke list of every op.
set(TAMIS_QUICK_TESTS
    "check\\.(smoke\\..*|forms|lean)" cuda-on-cpu
    "api-(arguments|caller_lists|attend_with|steps|window|rotated|faults|ops|bounds|pages|evict|replay|uploads|read_limit|settings|host_memory)"
    "api-(eviction|eviction_(steps|kinds|forks)|mass|prefixes|narrow|load|saved|saved_bytes|ops_(dense|weights|paged))"
    "api-(memory|cuda.*|opencl|layout|threads|devices.*|headers|symbols.*|needed.*)"
    "policies-(selections|matrix)-reference"
    "compare|compare-llama|portability|gpu-model|demo-refuses|readme-example|fetch-model|tiers|includes.*|errors.*|circles.*"
    "cli-(answer|progress|chat|chat-templates|compare-text)|bench-queue|blend-gate|eval-blend"
    "example-(decode|batch|engine_.*|.*-reference|vllm-.*)"
    "model-(gguf|parts|vocab|sample|tokens)"
    "model-(arguments|faults|launches|required_ops|runner|passkey|families|fingerprint|record|scheduler_store)-reference"
    "python-(examples|types|leak-self-test)"
    "store-(calls|shelves|tiers|prefix|model|damage|kill|full|processes|threads|faults|redis.*)"
    "blend-(rows|question_rows|share|loader|trials|(prefix|question)-reference)")
set(TAMIS_LONG_TESTS
    # These judge the checker, which changes less often than what it checks.
    "check\\.mutants.*"
    # The smoke list of full has all ops and all types on PoCL. By hand where kernels' parameters change.
    "check\\.(rusticl|intel)"
    # Sums in a fixed order: check.smoke plays the bits of each kernel.
    "check\\.bitwise\\..*"
    # Every value of every setting: api-settings-opencl plays them for two classes of launches.
    "api-settings-opencl-every"
    # These call on CUDA what they call on OpenCL and the reference, where full runs them; the ops that
    # they end in are checked on CUDA.
    "policies-(matrix|selections)-cuda|api-eviction_kinds-cuda|blend-(model|mix|prefix)-cuda"
    "model-(record|logits|required_ops)-cuda")

# Tests that take longest begin first, so that none is left alone at the end.
set(TAMIS_SLOW_TESTS
    "check\\.(opencl\\.(others|attend.*|sparse_attend)|cuda\\.others|mutants.*|rusticl|intel)"
    "policies-.*-opencl|consumer-static|model-real-.*|python(-wheel|-hf)?|cli|cli-(chunks|ttft)|cuda-ptx|gpu-compilers")

# Whether one of the patterns, which follow, is that of the test.
function(tamis_matches out test)
    set(${out} FALSE PARENT_SCOPE)
    foreach(pattern IN LISTS ARGN)
        if(test MATCHES "^(${pattern})$")
            set(${out} TRUE PARENT_SCOPE)
        endif()
    endforeach()
endfunction()

function(tamis_tiers)
    get_property(tests DIRECTORY PROPERTY TESTS)
    foreach(test IN LISTS tests)
        tamis_matches(long ${test} ${TAMIS_LONG_TESTS})
        tamis_matches(quick ${test} ${TAMIS_QUICK_TESTS})
        tamis_matches(slow ${test} ${TAMIS_SLOW_TESTS})
        set(labels full)
        if(long)
            set(labels long)
        elseif(quick)
            list(APPEND labels quick)
        endif()
        set_property(TEST ${test} PROPERTY LABELS ${labels})
        if(slow)
            set_property(TEST ${test} PROPERTY COST 100)
        endif()
    endforeach()
endfunction()
