// The HTML page of a run: figures, plots, tables, in one file.
#pragma once

#include <string>

#include "k3/server/loadgen/load_summary.h"

namespace k3::server {

std::string load_html(const LoadResult& result, const LoadSummary& summary, const Settings& settings,
                      const std::string& title);

}  // namespace k3::server
