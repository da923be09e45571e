// Internal to model: whole checkpoints in memory, for tests that damage them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "k3/base/check.h"
#include "k3/format/checkpoint.h"

namespace k3 {

struct Stored {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

using Tensors = std::map<std::string, Stored>;

inline Tensors read_all(const std::string& folder) {
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  Tensors tensors;
  checkpoint.for_each_name([&](std::string_view name, int32_t) {
    const TensorInfo info = checkpoint.find(name).value();
    Stored stored{{std::string(name), info.dtype, info.dims}, std::vector<std::byte>(static_cast<size_t>(info.size_bytes))};
    K3_CHECK(checkpoint.read(name, info, stored.bytes).ok(), "{}", name);
    tensors.emplace(name, std::move(stored));
  });
  return tensors;
}

inline void write_all(const Tensors& tensors, const std::string& folder) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, stored] : tensors) specs.push_back(stored.spec);
  CheckpointWriter writer = CheckpointWriter::create(folder, {specs}).value();
  for (const auto& [name, stored] : tensors) K3_CHECK(writer.append(name, stored.bytes).ok(), "{}", name);
  K3_CHECK(writer.finish().ok(), "{}", folder);
}

}  // namespace k3
