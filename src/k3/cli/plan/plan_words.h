// Internal to cli/plan. How `k3 plan` writes numbers, and a table whose text columns are set left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3::cli::words {

std::string time(double seconds);
std::string gigabytes(double bytes);
std::string count(double value);
std::string percent(double share);
std::string signed_percent(double share);
std::string whole_percent(double share);
std::string price(double value);
std::string tpot(double seconds);                     // "-" for 0: answers of one token have none
std::string plural(int64_t n, std::string_view one);  // "1 request", "1,024 requests"

// `left`: the columns set left.
std::string columns(const std::vector<std::vector<std::string>>& rows, const std::vector<size_t>& left);

}  // namespace k3::cli::words
