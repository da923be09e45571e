# A fuzz target is one file tests/fuzz/<name>_fuzz.cc that defines LLVMFuzzerTestOneInput; its seed corpus and
# every input that once failed lie in tests/fuzz/corpus/<name>/.

set(K3_FUZZED_LAYERS k3_format)
if(TARGET k3_train)
  list(PREPEND K3_FUZZED_LAYERS k3_train)
endif()
if(TARGET k3_server)
  list(PREPEND K3_FUZZED_LAYERS k3_server)
endif()

function(k3_fuzz_replay_tests)
  file(GLOB _targets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
  foreach(_file IN LISTS _targets)
    get_filename_component(_name ${_file} NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" _short ${_name})
    add_executable(${_name}_replay ${_file} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    target_link_libraries(${_name}_replay PRIVATE ${K3_FUZZED_LAYERS} k3::dep::fmt)
    add_test(NAME fuzz_replay_${_short} COMMAND ${_name}_replay ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${_short})
    set_tests_properties(fuzz_replay_${_short} PROPERTIES LABELS fuzz TIMEOUT 300)
  endforeach()
endfunction()
