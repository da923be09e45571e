#include "k3/plan/sim/policies.h"

#include <charconv>

namespace k3::plan {

Result<cache::CheckpointPolicy> checkpoint_policy(std::string_view name, int64_t block_tokens) {
  if (name == "serve") return cache::CheckpointPolicy{};
  cache::CheckpointPolicy policy;
  policy.prompt_end = true;
  policy.turn_ends = policy.second_sighting = policy.chunk_ends = false;
  if (name == "every") {
    policy.every_tokens = block_tokens;
    return policy;
  }
  std::string_view rest = name;
  const auto take = [&](std::string_view word) {
    const bool there = rest.starts_with(word) && (rest.size() == word.size() || rest[word.size()] == '+');
    if (there) rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    return there;
  };
  bool known = take("end");
  if (known) policy.second_sighting = take("second");
  if (known && !rest.empty()) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), policy.every_tokens);
    known = error == std::errc() && end == rest.data() + rest.size() && policy.every_tokens > 0;
  }
  if (!known || name.ends_with('+')) {
    return fail(Code::invalid_argument, "policy '{}': none of serve, every, end, end+N, end+second, end+second+N", name);
  }
  if (policy.every_tokens % block_tokens != 0) {
    return fail(Code::invalid_argument, "policy '{}': {} is no multiple of the {} tokens of a block", name,
                policy.every_tokens, block_tokens);
  }
  return policy;
}

Result<std::vector<std::string>> policy_names(std::string_view list, int64_t block_tokens) {
  if (list == "all")
    return std::vector<std::string>{"every", "end+2048",   "end+8192",         "end+32768",
                                    "end",   "end+second", "end+second+32768", "serve"};
  std::vector<std::string> names;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    names.emplace_back(list.substr(at, comma - at));
    K3_TRY(checkpoint_policy(names.back(), block_tokens));
    at = comma + 1;
  }
  return names;
}

}  // namespace k3::plan
