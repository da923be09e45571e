// Every matrix of every layer is in one stream or is spread; placement itself needs a machine of several memories.
#include "k3/model/weight_placement.h"

#include <gtest/gtest.h>

#include <set>

#include "k3/model/model.h"
#include "k3/model/params.h"

namespace k3 {
namespace {

TEST(WeightPlacement, StreamsHoldEveryMatrixOnce) {
  ThreadPool pool(2);
  for (const char* name : {"models/k3-mini", "tests/data/oracle-models/kl-a", "tests/data/oracle-models/mix-a"}) {
    const Model model = Model::load(std::string(K3_SOURCE_DIR) + "/" + name, pool).value();
    int64_t streamed = 0, spread = 0;
    std::set<const void*> seen;
    for (const LayerWeights& layer : model.weights().layers) {
      for (const auto& stream : weight_streams(layer)) {
        for (const ops::Weight& w : stream) {
          EXPECT_TRUE(seen.insert(w.data).second) << name;
          streamed += w.rows * w.cols;
        }
      }
      spread += layer.mla.kv_b.rows * layer.mla.kv_b.cols;
    }
    // By the parameter table: all matrices of layers but the experts.
    int64_t expected = 0;
    for_each_param(model.config(), [&](const ParamFamily& family, int64_t, int64_t) {
      if (!family.matrix || family.scope != ParamScope::layer) return;
      expected += element_count(family.shape(model.config()));
    });
    EXPECT_EQ(streamed + spread, expected) << name;
    EXPECT_TRUE(place_weights(model.weights(), plan_numa({}, 2, model.weights().size_bytes)));
  }
}

}  // namespace
}  // namespace k3
