// Purpose:  how a plan writes its numbers, on a terminal and on a page alike.
// Shapes:   none.
// Units:    seconds, bytes, shares of 1; prices in the unit they come in.
// Memory:   none.
// Threads:  pure functions.
// Errors:   none.
// Source:   none.
#pragma once

#include <string>

namespace k3::plan::words {

std::string time(double seconds);
std::string gigabytes(double bytes);
std::string count(double value);
std::string percent(double share);
std::string signed_percent(double share);  // one decimal
std::string whole_percent(double share);   // with its sign
std::string price(double value);

}  // namespace k3::plan::words
