# isa.cpp is compiled once for each instruction set, into a namespace of that name; kernels.cpp selects one at run time.
target_sources(rankwise_core PRIVATE ${CMAKE_CURRENT_LIST_DIR}/kernels.cpp ${CMAKE_CURRENT_LIST_DIR}/non_temporal.cpp
               ${CMAKE_CURRENT_LIST_DIR}/strided.cpp)

function(rankwise_kernels isa)
  set(target rankwise_kernels_${isa})
  add_library(${target} OBJECT ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/isa.cpp)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/..)
  target_compile_definitions(${target} PRIVATE RANKWISE_ISA=${isa})
  # Optimised in every build type. Contraction off: a fused multiply-add would round differently on some machines.
  target_compile_options(${target} PRIVATE
    -O3 -ffp-contract=off -fno-trapping-math -fno-math-errno -fvisibility=hidden ${ARGN}
    # GCC 12 warns about its own AVX-512 header, and Clang about a loop that became a memcpy.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
  target_sources(rankwise_core PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

rankwise_kernels(baseline)
# ThreadSanitizer sees the same accesses in each of them.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT RANKWISE_SANITIZE STREQUAL "thread")
  rankwise_kernels(avx2 -mavx2 -mf16c)
  # AVX-512's bf16 conversion flushes subnormals, and its f16 arithmetic rounds at every step: neither is used.
  rankwise_kernels(avx512 -mavx2 -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  target_compile_definitions(rankwise_core PRIVATE RANKWISE_X86_KERNELS)
endif()
