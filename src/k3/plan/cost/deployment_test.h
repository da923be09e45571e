// Models and deployments of the tests here.
#pragma once

#include <string>
#include <string_view>

#include "k3/plan/cost/deployment.h"

namespace k3::plan {

inline Config test_config(const std::string& name) {
  return load_config(std::string(K3_SOURCE_DIR) + "/tests/data/configs/" + name + ".json").value();
}

inline Hardware spec_hardware(std::string_view name) {
  for (const Hardware& h : kSpecHardware) {
    if (h.name == name) return h;
  }
  return {};
}

inline Counts k3_counts() { return idealised_counts(test_config("k3")).value(); }

inline Deployment k3_on(std::string_view hardware, const Layout& layout) {
  Deployment d;
  d.counts = k3_counts();
  d.hardware = spec_hardware(hardware);
  d.layout = layout;
  return d;
}

}  // namespace k3::plan
