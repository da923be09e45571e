# libFuzzer binaries (preset `fuzz`): build/fuzz/<name>_fuzz [corpus dir] -max_total_time=60
file(GLOB _targets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*_fuzz.cc)
foreach(_file IN LISTS _targets)
  get_filename_component(_name ${_file} NAME_WE)
  add_executable(${_name} ${_file})
  target_link_libraries(${_name} PRIVATE k3_format k3::dep::fmt)
  target_link_options(${_name} PRIVATE -fsanitize=fuzzer)
endforeach()
