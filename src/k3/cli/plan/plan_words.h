// Internal to cli/plan. How `k3 plan` writes numbers, and a table whose text columns are set left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "k3/plan/advise/answer.h"
#include "k3/plan/report/words.h"

namespace k3::cli::words {

using namespace plan::words;  // NOLINT: one vocabulary for pages and terminals

std::string tpot(double seconds);                     // "-" for 0: answers of one token have none
std::string plural(int64_t n, std::string_view one);  // "1 request", "1,024 requests"

// `left`: the columns set left.
std::string columns(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left);

// The last columns of a table of operating points: speed of a user and a GPU, cost where a price is given, whether the objectives are met.
std::vector<std::string> rates_header(const plan::Scenario& scenario);
std::vector<std::string> rates_of(const plan::Scenario& scenario, const plan::UserPoint& point);

}  // namespace k3::cli::words
