#include "k3/cli/plan/plan_words.h"

#include <fmt/format.h>

#include "k3/base/units.h"
#include "k3/cli/common.h"

namespace k3::cli::words {

std::string tpot(double seconds) { return seconds > 0 ? time(seconds) : "-"; }
std::string plural(int64_t n, std::string_view one) {
  return fmt::format("{} {}{}", format_grouped(n), one, n == 1 ? "" : "s");
}

std::string columns(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left) {
  Table table(rows.front());
  for (size_t i = 1; i < rows.size(); ++i) table.row(rows[i]);
  return table.text(left);
}

std::vector<std::string> rates_header(const plan::Scenario& s) {
  std::vector<std::string> out = {"tokens/s/user", "tokens/s/GPU"};
  if (s.gpu_hour > 0) out.push_back("cost/M");
  out.push_back("");
  return out;
}

std::vector<std::string> rates_of(const plan::Scenario& s, const plan::UserPoint& p) {
  std::vector<std::string> out = {p.tpot_p50 > 0 ? count(p.user_tokens_per_second()) : "-", count(p.tokens_per_second_gpu)};
  if (s.gpu_hour > 0) out.push_back(price(p.cost_per_million));
  out.emplace_back(p.meets ? "" : "misses");
  return out;
}

}  // namespace k3::cli::words
