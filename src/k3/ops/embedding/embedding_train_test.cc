// Gradients of embedding rows: ids that repeat, widths with tails of the column blocks.
#include "k3/ops/embedding/embedding.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

struct Case {
  int64_t tokens, vocab, hidden;
};

TEST(EmbeddingTrain, EveryCaseAgainstDifferencesAndDouble) {
  for (const Case& c : {Case{1, 1, 1}, Case{5, 3, 7}, Case{9, 40, 31}, Case{70, 5, 32}, Case{3, 100, 33}, Case{300, 17, 65}}) {
    std::vector<int32_t> ids(static_cast<size_t>(c.tokens));
    for (size_t t = 0; t < ids.size(); ++t) ids[t] = static_cast<int32_t>((t * t * 31 + t) % static_cast<size_t>(c.vocab));
    VjpOp op;
    op.name = fmt::format("embedding {} of {} x {}", c.tokens, c.vocab, c.hidden);
    op.inputs = {vjp_input("table", VjpInput::Kind::parameter, c.vocab, c.hidden, 1)};
    op.forward = [&](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      const Tensor out = ctx.workspace->tensor({c.tokens, c.hidden}, in[0].dtype);
      embedding_train(ctx, vjp_weight(in[0]), ids, out);
      return {out};
    };
    check_vjp(op);
  }
}

}  // namespace
}  // namespace k3::ops
