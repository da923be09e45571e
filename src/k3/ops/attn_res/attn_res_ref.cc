#include <algorithm>
#include <cmath>
#include <vector>

#include "k3/ops/attn_res/attn_res.h"

namespace k3::ops {

void attn_res_ref(const Tensor& blocks, const Tensor& prefix, const Tensor& query, float eps, const Tensor& out) noexcept {
  const int64_t count = blocks ? blocks.dim(0) : 0, hidden = prefix.dim(1);
  for (int64_t t = 0; t < prefix.dim(0); ++t) {
    std::vector<const float*> rows;
    for (int64_t j = 0; j < count; ++j) rows.push_back(blocks.at(j).row(t));
    rows.push_back(prefix.row(t));
    std::vector<double> p;
    for (const float* row : rows) {
      double dot = 0, squares = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        dot += static_cast<double>(row[i]) * query.f32()[i];
        squares += static_cast<double>(row[i]) * row[i];
      }
      p.push_back(dot / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps)));
    }
    const double top = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& s : p) sum += s = std::exp(s - top);
    for (int64_t i = 0; i < hidden; ++i) {
      double mixed = 0;
      for (size_t j = 0; j < rows.size(); ++j) mixed += p[j] / sum * rows[j][i];
      out.row(t)[i] = static_cast<float>(mixed);
    }
  }
}

}  // namespace k3::ops
