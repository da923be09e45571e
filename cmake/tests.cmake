# Unit tests lie beside the sources (x_test.cc, one binary a layer); what crosses layers lies in tests/<label>/.
# Labels: unit, golden, e2e, fault, load, fuzz, gpu, gpu-sanitize, slow. `make test` runs all but gpu, gpu-sanitize and slow.
include(GoogleTest)
set(K3_TEST_DATA_DIR ${CMAKE_SOURCE_DIR}/tests/data)

function(k3_test_binary name label)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE GTest::gtest_main GTest::gmock rapidcheck)
  target_compile_definitions(${name} PRIVATE K3_SOURCE_DIR="${CMAKE_SOURCE_DIR}" K3_BINARY_DIR="${CMAKE_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${label} TIMEOUT 900)
endfunction()

foreach(_layer IN LISTS K3_LAYERS)
  file(GLOB_RECURSE _tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/k3/${_layer}/*_test.cc)
  list(FILTER _tests EXCLUDE REGEX "_gpu_test\\.cc$")
  if(NOT K3_HAVE_CUDA)
    list(FILTER _tests EXCLUDE REGEX "/cuda/")
  endif()
  set(_slow ${_tests})
  list(FILTER _slow INCLUDE REGEX "_slow_test\\.cc$")
  list(FILTER _tests EXCLUDE REGEX "_slow_test\\.cc$")
  if(_tests)
    k3_test_binary(k3_${_layer}_test unit ${_tests})
    target_link_libraries(k3_${_layer}_test PRIVATE k3_${_layer} k3::dep::fmt k3::dep::nlohmann)
  endif()
  if(_slow)
    k3_test_binary(k3_${_layer}_slow_test slow ${_slow})
    target_link_libraries(k3_${_layer}_slow_test PRIVATE k3_${_layer} k3::dep::fmt k3::dep::nlohmann)
  endif()
  file(GLOB_RECURSE _benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/k3/${_layer}/*_bench.cc)
  list(FILTER _benches EXCLUDE REGEX "gpu_bench\\.cc$")
  if(_benches)
    add_executable(k3_${_layer}_bench ${_benches})
    target_link_libraries(k3_${_layer}_bench PRIVATE k3_${_layer} k3::dep::fmt k3::dep::nlohmann benchmark::benchmark_main)
    target_compile_definitions(k3_${_layer}_bench PRIVATE K3_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  endif()
endforeach()

if(K3_HAVE_CUDA)
  file(GLOB_RECURSE _tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/k3/*_gpu_test.cc ${CMAKE_SOURCE_DIR}/tests/gpu/*_gpu_test.cc)
  set(_gpu_tests ${_tests})
  k3_test_binary(k3_gpu_test gpu ${_tests})
  target_link_libraries(k3_gpu_test PRIVATE k3_train k3_engine k3_cache k3_model k3_ops k3::dep::fmt k3::dep::nlohmann)
  target_include_directories(k3_gpu_test PRIVATE ${CMAKE_SOURCE_DIR})
  file(GLOB_RECURSE _benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/k3/*gpu_bench.cc)
  add_executable(k3_gpu_bench ${_benches})
  target_link_libraries(k3_gpu_bench PRIVATE k3_train k3_model k3_ops k3::dep::fmt)
  # The same with kernels whose barriers racecheck can follow (ops/cuda/warp_arrive.cuh); built on demand.
  add_library(k3_racecheck_kernels OBJECT EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/src/k3/ops/kda/cuda/kda_prefill_sm90.cu
              ${CMAKE_SOURCE_DIR}/src/k3/ops/mla/cuda/mla_decode_sm90.cu ${CMAKE_SOURCE_DIR}/src/k3/ops/mla/cuda/mla_decode_halves_sm90.cu
              ${CMAKE_SOURCE_DIR}/src/k3/ops/mla/cuda/mla_fused_sm90.cu ${CMAKE_SOURCE_DIR}/src/k3/ops/gemm/cuda/gemm_one_sm90.cu
              ${CMAKE_SOURCE_DIR}/src/k3/ops/moe/cuda/moe_one_sm90.cu ${CMAKE_SOURCE_DIR}/src/k3/ops/sampling/cuda/sampling_sm90.cu)
  target_include_directories(k3_racecheck_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(k3_racecheck_kernels PRIVATE K3_RACECHECK)
  target_compile_options(k3_racecheck_kernels PRIVATE ${K3_CUDA_FLAGS} ${K3_GENCODE_sm90})
  add_executable(k3_gpu_racecheck_test EXCLUDE_FROM_ALL ${_gpu_tests} $<TARGET_OBJECTS:k3_racecheck_kernels>)
  target_link_libraries(k3_gpu_racecheck_test PRIVATE k3_train k3_engine k3_cache k3_model k3_ops k3::dep::fmt k3::dep::nlohmann GTest::gtest_main GTest::gmock rapidcheck)
  target_include_directories(k3_gpu_racecheck_test PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_definitions(k3_gpu_racecheck_test PRIVATE K3_SOURCE_DIR="${CMAKE_SOURCE_DIR}" K3_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # The smallest cases under compute-sanitizer; exit code 77: no GPU or no sanitizer.
  foreach(_tool memcheck racecheck)
    add_test(NAME gpu_${_tool} COMMAND ${CMAKE_SOURCE_DIR}/tools/gpu_check.sh --only ${_tool} ${CMAKE_BINARY_DIR})
    set_tests_properties(gpu_${_tool} PROPERTIES LABELS gpu-sanitize TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
endif()

# Kernels of Hopper on the CPU (tests/emulator): each file as C++, behind a file that includes it, because it is compiled as CUDA, too.
if(K3_HAVE_CUDA AND NOT K3_SANITIZE)  # sanitizers do not follow fibers
  set(_emulated)
  foreach(_kernel mla/cuda/mla_decode_sm90 mla/cuda/mla_decode_halves_sm90 mla/cuda/mla_merge_sm90 moe/cuda/moe_grouped_bf16_sm90
          moe/cuda/moe_grouped_mxfp4_sm90 moe/cuda/moe_grouped_cuda moe/cuda/moe_plan_cuda_sm90 moe/cuda/moe_one_sm90 moe/cuda/moe_stream_sm90
          moe/cuda/moe_combine_cuda_sm90 moe/cuda/moe_stream_pack_sm90 mla/cuda/mla_prefill_sm90 gemm/cuda/gemm_wide_sm90 gemm/cuda/gemm_one_sm90 gemm/cuda/gemm_stream_sm90
          kda/cuda/kda_prefill_sm90 kda/cuda/kda_prefill_scan_sm90 kda/cuda/kda_decode_cuda_sm90 kda/cuda/kda_verify_cuda_sm90
          kda/train/cuda/kda_train_inner_sm90 kda/train/cuda/kda_train_scan_sm90 kda/train/cuda/kda_train_grads_sm90
          kda/train/cuda/kda_train_forward_sm90 kda/train/cuda/kda_train_sums_cuda attn_res/cuda/attn_res_site_sm90)
    get_filename_component(_name ${_kernel} NAME)
    set(_file ${CMAKE_BINARY_DIR}/generated/emulated/${_name}.cc)
    file(GENERATE OUTPUT ${_file} CONTENT "#include \"k3/ops/${_kernel}.cu\"\n")
    list(APPEND _emulated ${_file})
  endforeach()
  add_library(k3_emulated_kernels OBJECT ${_emulated})
  file(GLOB _tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/emulator/*.cc)
  foreach(_plain moe/cuda/moe_grouped_cuda moe/cuda/moe_plan_cuda moe/cuda/moe_stream_cuda kda/cuda/kda_prefill_cuda kda/cuda/kda_prefill_maps
          kda/cuda/kda_decode_cuda kda/cuda/kda_verify_cuda kda/train/cuda/kda_train_dispatch gemm/cuda/gemm_cuda  # what builds their arguments
          kda/kda_ref kda/train/kda_train_ref short_conv/short_conv_ref gemm/linear_ref situ_glu/situ_glu_ref
          mxfp4/mxfp4 mxfp4/mxfp4_ref mxfp4/mxfp4_cpu_avx2 mxfp4/mxfp4_cpu_avx512)  # what they are compared with
    list(APPEND _tests ${CMAKE_SOURCE_DIR}/src/k3/ops/${_plain}.cc)
  endforeach()
  k3_test_binary(k3_emulator_test unit ${_tests} $<TARGET_OBJECTS:k3_emulated_kernels>)
  target_link_libraries(k3_emulator_test PRIVATE k3_tensor k3_base k3::dep::fmt k3_flags)
  foreach(_target k3_emulated_kernels k3_emulator_test)
    target_include_directories(${_target} BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/emulator/include ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
    target_include_directories(${_target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_options(${_target} PRIVATE -include cuda_words.h)
  endforeach()
  target_compile_options(k3_emulated_kernels PRIVATE -w)  # nvcc warns of them
endif()

if(K3_HAVE_CUDA AND NOT K3_SANITIZE)
  set_target_properties(k3kernels PROPERTIES EXCLUDE_FROM_ALL OFF)
  add_test(NAME kernel_library COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/kernel_library_test.py $<TARGET_FILE:k3kernels> ${CMAKE_SOURCE_DIR})
  set_tests_properties(kernel_library PROPERTIES LABELS e2e TIMEOUT 60)
endif()

if(TARGET k3 AND K3_HAVE_CUDA AND EXISTS ${CMAKE_SOURCE_DIR}/models/k3-mini)
  foreach(_name serve commands)
    add_test(NAME ${_name}_gpu COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/gpu/${_name}_gpu_test.py $<TARGET_FILE:k3> ${CMAKE_SOURCE_DIR}/models/k3-mini)
    set_tests_properties(${_name}_gpu PROPERTIES LABELS gpu TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()

if(TARGET k3)
  foreach(_label golden e2e fault load slow)
    file(GLOB _tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${_label}/*_test.cc)
    if(_tests)
      k3_test_binary(k3_${_label}_test ${_label} ${_tests})
      target_link_libraries(k3_${_label}_test PRIVATE k3_cli k3::dep::fmt k3::dep::nlohmann)
      target_include_directories(k3_${_label}_test PRIVATE ${CMAKE_SOURCE_DIR})
      target_compile_definitions(k3_${_label}_test PRIVATE K3_BINARY="$<TARGET_FILE:k3>")
      add_dependencies(k3_${_label}_test k3)
    endif()
  endforeach()
endif()

if(TARGET k3)
  # Random small models of the program's own making, judged by the NumPy reference.
  add_test(NAME oracle_numpy COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/oracle_test.py $<TARGET_FILE:k3>)
  set_tests_properties(oracle_numpy PROPERTIES LABELS golden TIMEOUT 900)
endif()

if(TARGET k3)
  # Other people's clients against the server; exit code 77: the packages are not there.
  add_test(NAME clients COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/clients_test.py $<TARGET_FILE:k3> ${CMAKE_SOURCE_DIR}/models/k3-mini)
  set_tests_properties(clients PROPERTIES LABELS e2e TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()

if(TARGET k3)
  # 64 users for five minutes, and 1,000 in the queue.
  add_test(NAME serve_load COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/slow/serve_load_test.py $<TARGET_FILE:k3> ${CMAKE_SOURCE_DIR}/models/k3-mini)
  set_tests_properties(serve_load PROPERTIES LABELS slow TIMEOUT 900 RUN_SERIAL TRUE)
endif()

if(TARGET k3)
  # Training: killed, asked to stop, on damaged files and full disks, by hostile configs.
  foreach(_name train_kill train_fault)
    add_test(NAME ${_name} COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/fault/${_name}_test.py $<TARGET_FILE:k3>)
    set_tests_properties(${_name} PROPERTIES LABELS fault TIMEOUT 600)
  endforeach()
endif()

# Random texts under the masks of the committed schemas, judged by an independent validator.
add_executable(k3_grammar_walk tests/e2e/grammar_walk.cc)
target_link_libraries(k3_grammar_walk PRIVATE k3_format k3::dep::fmt)
execute_process(COMMAND ${K3_PYTHON} -c "import jsonschema" RESULT_VARIABLE _no_jsonschema OUTPUT_QUIET ERROR_QUIET)
if(_no_jsonschema)
  message(STATUS "k3: ${K3_PYTHON} has no jsonschema; the walk over schemas is left out (make test has it)")
else()
  add_test(NAME schema_walk COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/schema_walk_test.py
           $<TARGET_FILE:k3_grammar_walk> ${CMAKE_SOURCE_DIR})
  set_tests_properties(schema_walk PROPERTIES LABELS e2e TIMEOUT 900)
endif()

if(TARGET k3)
  # The built-in page in a headless browser; exit code 77: no chromium, chromium-driver or selenium.
  add_test(NAME web_page COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/e2e/web_test.py $<TARGET_FILE:k3> ${CMAKE_SOURCE_DIR}/models/k3-mini)
  set_tests_properties(web_page PROPERTIES LABELS e2e TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()

# Fuzz corpora are replayed through a plain main() by every compiler; the libFuzzer build is the `fuzz` preset.
include(${CMAKE_SOURCE_DIR}/cmake/fuzz_targets.cmake)
k3_fuzz_replay_tests()

if(EXISTS ${CMAKE_SOURCE_DIR}/tools/check_tree.py)
add_test(NAME check_tree COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tools/check_tree.py ${CMAKE_SOURCE_DIR})
add_test(NAME check_tree_rules COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tools/check_tree_test.py)
set_tests_properties(check_tree check_tree_rules PROPERTIES LABELS unit)
endif()

add_test(NAME k3_mini_chat_data COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tools/k3_mini_chat_data_test.py)
add_test(NAME run_micro COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/bench/micro/run_micro_test.py)
add_test(NAME train_benches COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/bench/train/train_bench_test.py)
set_tests_properties(k3_mini_chat_data run_micro train_benches PROPERTIES LABELS unit)

# Optimised builds only: without inlining every template is a weak symbol.
if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" AND NOT K3_SANITIZE)
  add_test(NAME check_isa COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tools/check_isa.py ${CMAKE_BINARY_DIR})
  set_tests_properties(check_isa PROPERTIES LABELS unit)
endif()

# Tests that run the NumPy reference beside the program. `make test` passes the Python of its venv, which has NumPy.
execute_process(COMMAND ${K3_PYTHON} -c "import numpy" RESULT_VARIABLE _no_numpy OUTPUT_QUIET ERROR_QUIET)
if(_no_numpy)
  message(STATUS "k3: ${K3_PYTHON} has no numpy; tests against the NumPy reference are left out (make test has them)")
elseif(TARGET k3)
  add_test(NAME eps_sites COMMAND ${K3_PYTHON} ${CMAKE_SOURCE_DIR}/tests/golden/eps_test.py $<TARGET_FILE:k3> ${CMAKE_SOURCE_DIR})
  set_tests_properties(eps_sites PROPERTIES LABELS golden TIMEOUT 300)
endif()
