// Parameters and FLOPs of a config whose matrices are counted here, one by one.
#include "k3/train/run/train_flops.h"

#include <gtest/gtest.h>

#include "k3/train/run/tiny_model_test.h"

namespace k3::train {
namespace {

// Of tiny_model_json(): width 32; layers KDA with a dense MLP, KDA with experts, MLA with experts.
constexpr int64_t kNorms = 2 * 32 + 4 * 32;                // before the two sub-layers; norm and query of two AttnRes sites
constexpr int64_t kKda = 3 * 32 * 32 + 3 * 32 * 4          // q k v and their convolutions
                         + 16 + 32                         // A_log (padded to the head's width), dt_bias
                         + 16 * 32 + 32 * 16 + 2 * 32      // decay down and up, beta
                         + 32 * 32 + 16 + 32 * 32;         // gate, norm of heads, output
constexpr int64_t kMla = 16 * 32 + 16 + 48 * 16            // queries down, norm, up: two heads of 16 + 8
                         + 24 * 32 + 16 + 64 * 16          // latent and shared key, norm, two heads of keys and values
                         + 32 * 32 + 32 * 32;              // gate, output
constexpr int64_t kDense = 3 * 64 * 32;
constexpr int64_t kExpert = 3 * 32 * 32;
constexpr int64_t kMoe = 4 * 32 + 4 + 32 * 32 + 32 + 32 * 32 + kExpert;  // router, its bias, latent down, norm, up, shared expert
constexpr int64_t kEnd = 3 * 32;                           // last norm; norm and query of the last AttnRes site
constexpr int64_t kTrunk = 3 * kNorms + 2 * kKda + kMla + kDense + 2 * kMoe + kEnd;
constexpr int64_t kTable = 100 * 32;                       // embedding, and lm_head

TEST(TrainFlops, AreThoseCountedByHand) {
  const TrainFlops got = train_flops(parse_config(tiny_model_json(100), "tiny").value());
  EXPECT_EQ(got.parameters, kTrunk + 2 * 4 * kExpert + 2 * kTable);
  EXPECT_EQ(got.active_parameters, kTrunk + 2 * 2 * kExpert + kTable);  // two of four experts; the embedding is copied, not multiplied
  EXPECT_DOUBLE_EQ(got.per_token, 6.0 * static_cast<double>(kTrunk + 4 * kExpert + kTable));
  EXPECT_EQ(got.active_parameters, 51336);
}

TEST(TrainFlops, ATiedTableIsMultipliedAndStoredOnce) {
  Config config = parse_config(tiny_model_json(100), "tiny").value();
  config.tie_word_embeddings = true;
  EXPECT_EQ(train_flops(config).parameters, kTrunk + 8 * kExpert + kTable);
  EXPECT_EQ(train_flops(config).active_parameters, kTrunk + 4 * kExpert + kTable);
}

TEST(TrainFlops, ATowerIsNotTrainedHereAndNotCounted) {
  Config config = parse_config(tiny_model_json(100), "tiny").value();
  const double without = train_flops(config).per_token;
  config.vision = VisionConfig{};
  EXPECT_EQ(train_flops(config).per_token, without);
}

}  // namespace
}  // namespace k3::train
