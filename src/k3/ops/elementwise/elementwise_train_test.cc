// The gradient of a sum in place: that of its result stays, and is passed to what was added.
#include "k3/ops/elementwise/elementwise.h"
#include "k3/ops/vjp_test.h"

namespace k3::ops {
namespace {

TEST(ElementwiseTrain, SumsInPlace) {
  for (const int64_t width : {1, 7, 33, 20000}) {  // 16,384 elements are a task
    VjpOp op;
    op.name = fmt::format("add 3 x {}", width);
    op.inputs = {vjp_input("x", VjpInput::Kind::activation, 3, width, 1), vjp_input("y", VjpInput::Kind::activation, 3, width, 2)};
    op.forward = [](const Ctx& ctx, std::span<const Tensor> in) -> std::vector<Tensor> {
      add(ctx, in[0], in[1]);
      add(ctx, in[0], in[1]);
      return {};
    };
    // Without other uses nothing depends on y: only the second round of check_vjp says something.
    VjpValues values;
    for (const VjpInput& in : op.inputs) values.emplace_back(in.values.begin(), in.values.end());
    const VjpResult exact = vjp_internal::run_f64(op, values, true, true);
    vjp_internal::compare_with_differences(op, values, exact, true);
    for (const Isa isa : test_isas()) vjp_internal::compare_f32(op, values, exact, isa, true);
  }
}

}  // namespace
}  // namespace k3::ops
