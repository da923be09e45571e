# Every third-party library of k3, each as k3::dep::<name>, and which layers own it (docs: tools/check_tree.py
# enforces the same ownership for includes). System packages only; nothing is vendored or downloaded here.
# A missing optional library turns its feature off with one line of the configure summary.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

function(k3_dep name target)
  add_library(k3_dep_${name} INTERFACE)
  target_link_libraries(k3_dep_${name} INTERFACE ${target})
  add_library(k3::dep::${name} ALIAS k3_dep_${name})
endfunction()

function(k3_dep_pkg name module)
  pkg_check_modules(${name} REQUIRED QUIET IMPORTED_TARGET GLOBAL ${module})
  k3_dep(${name} PkgConfig::${name})
endfunction()

find_package(fmt REQUIRED)
k3_dep(fmt fmt::fmt)
find_package(spdlog REQUIRED)
k3_dep(spdlog spdlog::spdlog)
find_package(simdjson REQUIRED)
k3_dep(simdjson simdjson::simdjson)
k3_dep_pkg(xxhash libxxhash)
k3_dep_pkg(zstd libzstd)
k3_dep_pkg(pcre2 libpcre2-8)
find_path(K3_NLOHMANN_INCLUDE nlohmann/json.hpp REQUIRED)
add_library(k3_nlohmann INTERFACE)
target_include_directories(k3_nlohmann SYSTEM INTERFACE ${K3_NLOHMANN_INCLUDE})
k3_dep(nlohmann k3_nlohmann)
find_path(K3_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
add_library(k3_cli11 INTERFACE)
target_include_directories(k3_cli11 SYSTEM INTERFACE ${K3_CLI11_INCLUDE})
k3_dep(cli11 k3_cli11)
k3_dep_pkg(libedit libedit)

if(K3_ONEDNN)
  # Debian's dnnl config asks for OpenCL development files only to satisfy itself; the library alone is enough.
  find_library(K3_DNNL_LIBRARY dnnl)
  find_path(K3_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp)
  find_package(OpenMP COMPONENTS CXX)
endif()
if(K3_ONEDNN AND K3_DNNL_LIBRARY AND K3_DNNL_INCLUDE AND OpenMP_gomp_LIBRARY)
  add_library(k3_dnnl INTERFACE)
  target_include_directories(k3_dnnl SYSTEM INTERFACE ${K3_DNNL_INCLUDE})
  # The OpenMP runtime that oneDNN runs on: linear_onednn.cc tells it to stay inside one thread.
  target_link_libraries(k3_dnnl INTERFACE ${K3_DNNL_LIBRARY} ${OpenMP_gomp_LIBRARY})
  k3_dep(dnnl k3_dnnl)
  set(K3_HAVE_ONEDNN ON)
else()
  set(K3_HAVE_ONEDNN OFF)
endif()

# Owners: layer -> libraries it may include.
set(K3_THIRD_PARTY_base fmt spdlog simdjson xxhash zstd)
set(K3_THIRD_PARTY_tensor fmt)
set(K3_THIRD_PARTY_ops fmt dnnl)
set(K3_THIRD_PARTY_format fmt nlohmann pcre2)
set(K3_THIRD_PARTY_model fmt)
set(K3_THIRD_PARTY_engine fmt)
set(K3_THIRD_PARTY_cli fmt cli11 libedit)

if(K3_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  find_package(benchmark REQUIRED)
endif()
