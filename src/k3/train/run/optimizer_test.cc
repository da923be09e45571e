// What a recipe's decays do to which parameters: with gradients of zero nothing but decay changes a weight.
#include "k3/train/run/optimizer.h"

#include <gtest/gtest.h>

#include "k3/model/init.h"
#include "k3/train/run/gradient.h"
#include "k3/train/run/tiny_model_test.h"

namespace k3::train {
namespace {

struct Kept {
  double embedding, head, matrix, norm;
};

// The share of four parameters that is left after one step at rate 1.
Kept kept(const Recipe& recipe) {
  Config config = parse_config(tiny_model_json(256), "tiny").value();
  settle_random(config);
  ThreadPool pool(1);
  TrainWeights weights = make_train_weights(config, DType::f64).value();
  draw_train_weights(weights, 1, pool);
  const auto first = [&](const char* name) { return &weights.tensor(*weights.find(name)).as<double>()[0]; };
  const double* of[] = {first("language_model.model.embed_tokens.weight"), first("language_model.lm_head.weight"),
                        first("language_model.model.layers.0.self_attn.o_proj.weight"), first("language_model.model.norm.weight")};
  double before[4];
  for (size_t i = 0; i < 4; ++i) before[i] = *of[i];
  const Storage memory = Storage::allocate(weights.elements * 8).value();
  const Tensor grads(memory.data(), DType::f64, {weights.elements});
  Gradient gradient(weights, grads, pool);
  Optimizer optimizer = Optimizer::create(weights, recipe).value();
  optimizer.watch(gradient.tape());
  EXPECT_TRUE(optimizer.step(gradient.ctx(), grads, 1, 1).ok());
  return {*of[0] / before[0], *of[1] / before[1], *of[2] / before[2], *of[3] / before[3]};
}

TEST(Optimizer, TablesDecayAsTheRecipeSays) {
  Recipe recipe;
  recipe.matrix_rate = 0.5;
  recipe.vector_rate = 0.5;
  recipe.embedding_rate = 0.25;
  recipe.weight_decay = 0.1;
  const std::pair<std::optional<double>, double> cases[] = {{std::nullopt, 0.975}, {0.0, 1.0}, {0.4, 0.9}};
  for (const auto& [decay, left] : cases) {
    SCOPED_TRACE(left);
    recipe.embedding_decay = decay;
    const Kept share = kept(recipe);
    EXPECT_DOUBLE_EQ(left, share.embedding);
    EXPECT_DOUBLE_EQ(left, share.head);
    EXPECT_DOUBLE_EQ(0.95, share.matrix);
    EXPECT_DOUBLE_EQ(1.0, share.norm);
  }
}

}  // namespace
}  // namespace k3::train
