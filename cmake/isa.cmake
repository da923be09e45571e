# Instruction-set flags go to single files, chosen by suffix; everything else is built for x86-64-v2 and the
# choice between the variants is made at run time (src/k3/ops/cpu/isa.h). -march=native is never used.

set(K3_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(K3_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx2 -mfma -mf16c -mbmi2)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND K3_ISA_FLAGS_avx512 -Wno-maybe-uninitialized -Wno-uninitialized)  # false positives in g++ 12's own intrinsics header
endif()
set(K3_ISA_FLAGS_avx512bf16 ${K3_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vnni)
set(K3_ISA_FLAGS_amx ${K3_ISA_FLAGS_avx512bf16} -mamx-tile -mamx-bf16)

function(k3_set_isa_flags)
  foreach(_source IN LISTS ARGN)
    foreach(_isa avx2 avx512 avx512bf16 amx)
      if(_source MATCHES "_cpu_${_isa}\\.cc$")
        set_property(SOURCE ${_source} APPEND PROPERTY COMPILE_OPTIONS ${K3_ISA_FLAGS_${_isa}})
      endif()
    endforeach()
  endforeach()
endfunction()
